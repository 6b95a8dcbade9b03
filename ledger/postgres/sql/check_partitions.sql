-- Partitions whose counts do not add up: what the records were counted as, in
-- fold_progress, in the batch records, and in the tables. $1 is the topic;
-- of the partitions in $2 the journal has as many rows as $3 says.
WITH journalled AS (
    SELECT * FROM unnest($2::integer[], $3::bigint[]) AS j (topic_partition, n)
), contradicted AS (
    SELECT topic_partition, count(*) AS n FROM event_conflicts GROUP BY 1
), batched AS (
    SELECT topic_partition, sum(consumed) AS consumed, sum(folded) AS folded, sum(duplicates) AS duplicates,
        sum(dead_lettered) AS dead_lettered, sum(conflicts) AS conflicts
    FROM batches WHERE topic = $1 GROUP BY 1
)
SELECT topic_partition,
    ARRAY[p.folded + p.duplicates + p.dead_lettered + p.conflicts,
        b.consumed, b.folded, b.duplicates, b.dead_lettered, b.conflicts,
        j.n, j.n, c.n]::text[],
    ARRAY[p.consumed,
        p.consumed, p.folded, p.duplicates, p.dead_lettered, p.conflicts,
        p.folded, p.tree_size, p.conflicts]::text[]
FROM (SELECT * FROM fold_progress WHERE topic = $1) p
    FULL JOIN batched b USING (topic_partition)
    FULL JOIN journalled j USING (topic_partition)
    FULL JOIN contradicted c USING (topic_partition)
ORDER BY 1
