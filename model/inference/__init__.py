"""A trained model without Lightning: from Python, and into files for other programs."""

from model.inference.trained import TrainedForecaster

__all__ = ["TrainedForecaster"]
