-- The part [$3, $4) of the hour that begins at $2, from the journal, beside the
-- whole hour from the journal and from its bucket. The two must agree, else the
-- part cannot be trusted.
WITH events AS (
    SELECT model, event_time >= $3 AND event_time < $4 AS inside,
        CASE WHEN NOT tombstone AND ((type = 'tollgate.reservation.settled.v1' AND state = 'settled')
            OR (type = 'tollgate.reservation.cancelled.v1' AND state = 'cancelled')) THEN 1 ELSE 0 END AS requests,
        input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, tool_calls, images, audio_ms, gpu_ms
    FROM journal
    WHERE tenant_id = $1 AND event_time >= $2 AND event_time < $2::timestamptz + interval '1 hour'
), parts AS (
    SELECT model,
        coalesce(sum(requests) FILTER (WHERE inside), 0)::bigint AS requests,
        coalesce(sum(input_tokens) FILTER (WHERE inside), 0)::bigint AS input_tokens,
        coalesce(sum(output_tokens) FILTER (WHERE inside), 0)::bigint AS output_tokens,
        coalesce(sum(cached_input_tokens) FILTER (WHERE inside), 0)::bigint AS cached_input_tokens,
        coalesce(sum(reasoning_tokens) FILTER (WHERE inside), 0)::bigint AS reasoning_tokens,
        coalesce(sum(tool_calls) FILTER (WHERE inside), 0)::bigint AS tool_calls,
        coalesce(sum(images) FILTER (WHERE inside), 0)::bigint AS images,
        coalesce(sum(audio_ms) FILTER (WHERE inside), 0)::bigint AS audio_ms,
        coalesce(sum(gpu_ms) FILTER (WHERE inside), 0)::bigint AS gpu_ms,
        ARRAY[sum(requests), sum(input_tokens), sum(output_tokens), sum(cached_input_tokens), sum(reasoning_tokens),
            sum(tool_calls), sum(images), sum(audio_ms), sum(gpu_ms)]::numeric[] AS whole
    FROM events
    GROUP BY model
), buckets AS (
    SELECT model,
        ARRAY[sum(requests), sum(input_tokens), sum(output_tokens), sum(cached_input_tokens), sum(reasoning_tokens),
            sum(tool_calls), sum(images), sum(audio_ms), sum(gpu_ms)]::numeric[] AS whole
    FROM usage_hour
    WHERE tenant_id = $1 AND hour = $2
    GROUP BY model
)
SELECT coalesce(p.model, b.model),
    coalesce(p.requests, 0), coalesce(p.input_tokens, 0), coalesce(p.output_tokens, 0), coalesce(p.cached_input_tokens, 0),
    coalesce(p.reasoning_tokens, 0), coalesce(p.tool_calls, 0), coalesce(p.images, 0), coalesce(p.audio_ms, 0), coalesce(p.gpu_ms, 0),
    coalesce(p.whole, array_fill(0::numeric, ARRAY[9])) = coalesce(b.whole, array_fill(0::numeric, ARRAY[9])) AS agree
FROM parts p FULL JOIN buckets b ON b.model = p.model
ORDER BY 1
