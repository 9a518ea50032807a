"""The lab: everything behind the command ``rownorm``. The library never imports it."""
