"""The lab of rownorm: checks, measures, analyzes, tunes, profiles and reports. It is behind the command ``rownorm``."""
