"""What chains of manifests share: archives and datasets."""
