"""The lab: what stands behind ``rownorm`` on the command line. The library never imports it."""
