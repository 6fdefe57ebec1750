"""Pretrained vision-language models, local or served, and retrieval pipelines as memories: one protocol for all."""
