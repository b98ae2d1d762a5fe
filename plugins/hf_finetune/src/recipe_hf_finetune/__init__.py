"""Fine-tuning for classification of text, with Hugging Face's Trainer."""
