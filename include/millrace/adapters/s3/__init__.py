"""Objects in S3: the bucket that an `aws` Connection leads to."""
