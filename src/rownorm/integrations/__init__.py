"""What other frameworks ask of rownorm, one module each. A module is imported by its framework, or by name; never by
``import rownorm``.

aten.py          PyTorch's own norms computed by rownorm: ``rownorm.override_aten``
axolotl.py       a plugin: rownorm.patch when the model is built
flashinfer.py    norms into the tensors that FlashInfer's Trace Apply passes
hf_kernels.py    layers for ``kernelize`` of Hugging Face's package kernels; integrations/hf_kernels/ builds from them
lightning.py     a callback: rownorm.patch before training
megatron.py      a norm for layer specs
sglang.py        a plugin: RMSNorm.forward_cuda
torchtitan.py    an override of RMSNorm
trainer.py       a callback for transformers' Trainer: rownorm.patch before training
vllm.py          a plugin: RMSNorm
"""
