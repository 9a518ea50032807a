"""``rownorm info``: devices, versions and providers."""
