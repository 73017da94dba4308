"""From a file to micro-batches: `schema` → `encode` → `plan` → `batch`."""
