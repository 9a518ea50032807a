"""Over some hundred steps the losses of the three stages stay together, and models learn."""

import pytest
import torch

from rownorm_lab.models import STAGES
from rownorm_lab.models.data import bin_entropy, walk_entropy
from rownorm_lab.models.parallel import World
from rownorm_lab.models.tasks import TASKS
from rownorm_lab.models.trainer import Trainer, TrainingRequest

pytestmark = [pytest.mark.exhaustive, pytest.mark.usefixtures("without_interpreter")]
N_STEPS, WINDOW = 200, 20


def means(name, stage, device):
    """The mean loss of every ``WINDOW`` steps."""
    trainer = Trainer(TrainingRequest(name, "tiny", stage, seed=0), World(), device)
    for _ in range(N_STEPS):
        trainer.step()
    return torch.tensor(trainer.losses).unflatten(0, (-1, WINDOW)).mean(1)


@pytest.mark.parametrize("name", list(TASKS))
def test_stages_stay_together(name, device):
    curves = {stage: means(name, stage, device) for stage in STAGES}
    for stage in STAGES[1:]:
        difference = (curves[stage] / curves["baseline"] - 1).abs().max()
        assert difference < 0.02, stage
    if name == "llama":  # less than the increments alone allow: the repetition is used
        assert curves["rownorm"][-1] < walk_entropy()
    else:  # bins of distances, letters of images
        _, bins = TASKS[name].batch("tiny", 16, 0, 0)
        assert curves["rownorm"][-1] < 0.6 * bin_entropy(bins)
