"""Stand-ins of vLLM 0.33.0 and SGLang 0.5.23: what rownorm's plugins use of them, where they cannot be imported.

Files and names are those of the packages; tests/integrations/test_serving.py compares them with the packages' sources.
"""
