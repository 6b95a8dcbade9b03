-- Usage of whole hours, added up over the stretches between changes of price:
-- within a stretch every hour has the same prices, so only the sum matters.
SELECT model, min(hour), max(hour) + interval '1 hour',
    sum(requests)::bigint, sum(input_tokens)::bigint, sum(output_tokens)::bigint,
    sum(cached_input_tokens)::bigint, sum(reasoning_tokens)::bigint, sum(tool_calls)::bigint,
    sum(images)::bigint, sum(audio_ms)::bigint, sum(gpu_ms)::bigint
FROM usage_hour
WHERE tenant_id = $1 AND hour >= $2 AND hour < $3
GROUP BY model, width_bucket(hour, $4::timestamptz[])
ORDER BY model, min(hour)
