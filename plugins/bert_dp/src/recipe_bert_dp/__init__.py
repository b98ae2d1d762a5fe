"""BERT: data for its pre-training. What it adds to recipe is in :mod:`recipe_bert_dp.plugin`."""
