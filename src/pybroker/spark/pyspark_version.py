"""The check for a supported version of PySpark."""

from __future__ import annotations

from importlib.util import find_spec

import pyspark


def require_data_sources() -> None:
    if find_spec("pyspark.sql.datasource") is None:
        raise ImportError(
            f"pybroker does not work with PySpark {pyspark.__version__}: data sources in Python begin with PySpark 4.0. "
            "Install a newer PySpark (pip install 'pyspark>=4.0,<5')"
        )
