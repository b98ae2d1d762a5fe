"""BERT, tensor parallel. What it adds to recipe is in :mod:`recipe_bert_tp.plugin`."""
