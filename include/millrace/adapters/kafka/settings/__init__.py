"""librdkafka's keys in the words of other clients."""
