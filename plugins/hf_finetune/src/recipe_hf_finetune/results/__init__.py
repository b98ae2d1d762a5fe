"""What a fine-tuning gives: metrics, predictions, pictures, and the closing words."""
