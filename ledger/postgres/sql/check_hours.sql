-- Buckets of usage_hour that are not the sum of the journal's events of that
-- hour, model, endpoint and key. $1 bounds how many are named.
SELECT tenant_id, hour, model, endpoint, key_id, j.figures::text[], u.figures::text[]
FROM (
    SELECT tenant_id, date_trunc('hour', event_time, 'UTC') AS hour, model, endpoint, key_id,
        ARRAY[count(*) FILTER (WHERE final),
            sum(input_tokens), sum(output_tokens), sum(cached_input_tokens), sum(reasoning_tokens),
            sum(tool_calls), sum(images), sum(audio_ms), sum(gpu_ms), sum(milli_units)] AS figures
    FROM (
        SELECT *, state IN ('settled', 'cancelled') AND NOT tombstone
            AND type IN ('tollgate.reservation.settled.v1', 'tollgate.reservation.cancelled.v1') AS final
        FROM journal
    ) e
    -- An event that adds nothing makes no bucket.
    WHERE final OR input_tokens <> 0 OR output_tokens <> 0 OR cached_input_tokens <> 0 OR reasoning_tokens <> 0
        OR tool_calls <> 0 OR images <> 0 OR audio_ms <> 0 OR gpu_ms <> 0 OR milli_units <> 0
    GROUP BY 1, 2, 3, 4, 5
) j
FULL JOIN (
    SELECT tenant_id, hour, model, endpoint, key_id,
        ARRAY[requests, input_tokens, output_tokens, cached_input_tokens, reasoning_tokens,
            tool_calls, images, audio_ms, gpu_ms, milli_units]::numeric[] AS figures
    FROM usage_hour
) u USING (tenant_id, hour, model, endpoint, key_id)
WHERE j.figures IS DISTINCT FROM u.figures
ORDER BY 1, 2, 3, 4, 5
LIMIT $1
