"""What was asked: configuration, stages, metrics, manifest, templates."""
