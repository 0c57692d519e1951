-- What people ask of activity.seen. A group's records all lie in one partition of __consumer_offsets, so `_offset`
-- orders what is said of it; a topic that was made again (`_topic_id`) or another timeline changes nothing of that.

CREATE INDEX IF NOT EXISTS seen_by_group ON activity.seen (kind, group_id, _offset);

CREATE INDEX IF NOT EXISTS seen_commits_by_time ON activity.seen (committed_at) WHERE kind = 'commit';

-- Who had which partition, from one record of the log up to another.
CREATE OR REPLACE VIEW activity.readers AS
WITH states AS (  -- a record of a classic group is all that the group is, until the next
    SELECT _topic_id, _partition, group_id, _offset,
        lead(_offset) OVER (PARTITION BY _topic_id, _partition, group_id ORDER BY _offset) AS until
    FROM (SELECT DISTINCT _topic_id, _partition, group_id, _offset FROM activity.seen WHERE kind = 'classic') AS one
), assignments AS (  -- one of a KIP-848 group is all that one member has, until its next
    SELECT _topic_id, _partition, group_id, member_id, assigned, _offset,
        lead(_offset) OVER (PARTITION BY _topic_id, _partition, group_id, member_id ORDER BY _offset) AS until
    FROM activity.seen WHERE kind = 'assignment'
)
SELECT seen._topic_id AS log_topic_id, seen._partition AS log_partition, group_id, has.key AS topic,
    NULL::text AS topic_id, number::int AS partition, member_id, client_id, client_host, instance,
    _offset AS from_offset, until AS until_offset
FROM activity.seen JOIN states USING (_topic_id, _partition, group_id, _offset),
    jsonb_each(assigned::jsonb) AS has, jsonb_array_elements_text(has.value) AS number
WHERE kind = 'classic'
UNION ALL
SELECT _topic_id, _partition, group_id, NULL, has.key, number::int, member_id,
    said.client_id, said.client_host, said.instance, _offset, until
FROM assignments
LEFT JOIN LATERAL (
    SELECT client_id, client_host, instance FROM activity.seen AS member
    WHERE member.kind = 'member' AND member.group_id = assignments.group_id AND member.client_id IS NOT NULL
        AND member.member_id = assignments.member_id AND member._topic_id = assignments._topic_id
        AND (until IS NULL OR member._offset < until)
    ORDER BY member._offset DESC LIMIT 1
) AS said ON true,
    jsonb_each(assigned::jsonb) AS has, jsonb_array_elements_text(has.value) AS number;

-- Each last commit of a batch, with the member that had the partition then; none: somebody else committed, or its
-- group's members were last told before the log begins.
CREATE OR REPLACE VIEW activity.commits AS
SELECT commit.group_id, commit.topic, commit.partition, commit.committed, commit.committed_at, commit.records,
    had.member_id, had.client_id, had.client_host, had.instance
FROM (SELECT * FROM activity.seen WHERE kind = 'commit') AS commit
LEFT JOIN LATERAL (
    SELECT member_id, client_id, client_host, instance FROM activity.readers AS reader
    WHERE reader.group_id = commit.group_id AND reader.partition = commit.partition
        AND (reader.topic = commit.topic OR reader.topic_id = commit.topic_id)
        AND reader.log_topic_id = commit._topic_id AND reader.log_partition = commit._partition
        AND reader.from_offset < commit._offset
        AND (reader.until_offset IS NULL OR commit._offset < reader.until_offset)
    ORDER BY reader.from_offset DESC LIMIT 1
) AS had ON true;

CREATE OR REPLACE VIEW activity.minutes AS
SELECT date_trunc('minute', committed_at) AS minute, group_id, topic, partition, client_id, client_host, instance,
    max(committed) AS committed, max(committed_at) AS last_commit, sum(records)::bigint AS commits
FROM activity.commits WHERE committed_at IS NOT NULL
GROUP BY 1, 2, 3, 4, 5, 6, 7;

-- What this release cannot read, by the version in the records' keys.
CREATE OR REPLACE VIEW activity.unreadable AS
SELECT version, min(error) AS error, sum(records)::bigint AS records FROM activity.seen
WHERE kind = 'unreadable' GROUP BY version;
