"""A script with a mistake."""

import os

print(f"{os.environ['SM_CURRENT_HOST']} begins")
raise ValueError("there is no digit 'ten'")
