-- Reservations that ended more than once and of which an end after the first
-- adds use: what they add up to is too much. $1 bounds how many are named.
WITH ends AS (
    SELECT reservation_id, seq, event_id, state, milli_units,
        input_tokens <> 0 OR output_tokens <> 0 OR cached_input_tokens <> 0 OR reasoning_tokens <> 0 OR tool_calls <> 0
            OR images <> 0 OR audio_ms <> 0 OR gpu_ms <> 0 OR milli_units <> 0 AS adds
    FROM journal
    WHERE reservation_id <> '' AND state IN ('settled', 'cancelled')
), suspected AS (
    SELECT reservation_id FROM ends GROUP BY 1 HAVING count(*) > 1 AND bool_or(adds)
), numbered AS (
    SELECT ends.*, row_number() OVER (PARTITION BY reservation_id ORDER BY seq, event_id) AS n
    FROM ends JOIN suspected USING (reservation_id)
), told AS (
    SELECT *, format('%s %s at seq %s (%s milli-units)', state, event_id, seq, milli_units) AS event FROM numbered
)
SELECT reservation_id,
    ARRAY[min(event) FILTER (WHERE n = 1)],
    ARRAY[string_agg(event, ', then ' ORDER BY n)]
FROM told
GROUP BY 1
HAVING bool_or(adds AND n > 1)
ORDER BY 1
LIMIT $1
