-- The totals of the tables of use, over all tenants: they may leave a bigint's
-- range. Without a window every hour is open.
SELECT 'usage_hour', ARRAY[sum(requests),
    sum(input_tokens), sum(output_tokens), sum(cached_input_tokens), sum(reasoning_tokens),
    sum(tool_calls), sum(images), sum(audio_ms), sum(gpu_ms), sum(milli_units)]::text[] FROM usage_hour
UNION ALL
SELECT 'usage_30d', ARRAY[sum(requests),
    sum(input_tokens), sum(output_tokens), sum(cached_input_tokens), sum(reasoning_tokens),
    sum(tool_calls), sum(images), sum(audio_ms), sum(gpu_ms), sum(milli_units)]::text[] FROM usage_30d
UNION ALL
SELECT 'before', ARRAY[sum(requests),
    sum(input_tokens), sum(output_tokens), sum(cached_input_tokens), sum(reasoning_tokens),
    sum(tool_calls), sum(images), sum(audio_ms), sum(gpu_ms), sum(milli_units)]::text[]
FROM usage_hour WHERE hour < (SELECT window_start FROM usage_window)
UNION ALL
SELECT 'open', ARRAY[sum(requests),
    sum(input_tokens), sum(output_tokens), sum(cached_input_tokens), sum(reasoning_tokens),
    sum(tool_calls), sum(images), sum(audio_ms), sum(gpu_ms), sum(milli_units)]::text[]
FROM usage_hour WHERE hour >= coalesce((SELECT closed_through FROM usage_window), '-infinity')
