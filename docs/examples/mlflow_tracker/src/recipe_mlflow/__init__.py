"""Metrics in MLflow: the tracker ``mlflow``."""
