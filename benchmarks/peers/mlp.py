"""The model that every training-step measurement uses, as constants only.

A classifier of 28 x 28 images with four hidden layers, each 5000 wide with ReLU:
784*5000 + 3*5000*5000 + 5000*10 weights and 4*5000 + 10 biases = 78 990 010 parameters.
"""

from typing import Final

INPUT_WIDTH: Final = 784
HIDDEN_WIDTHS: Final = (5000, 5000, 5000, 5000)
CLASSES: Final = 10
PARAMETERS: Final = 78_990_010
BATCH_PER_WORKER: Final = 64
LEARNING_RATE: Final = 0.01  # plain SGD, no momentum
