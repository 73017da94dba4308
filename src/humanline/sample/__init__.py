"""Completions of prompts: in this process, from a model server, or through vLLM, all behind one protocol (`sampler`)."""
