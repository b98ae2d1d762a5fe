"""Parts of a preparation on workers of Dask: the executor ``dask``."""
