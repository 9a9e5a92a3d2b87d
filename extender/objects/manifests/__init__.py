"""Manifests as people write them: YAML with several documents. Others use: `yaml_documents`."""
