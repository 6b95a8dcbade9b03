-- The totals of the tables of use. Without a window every hour is open.
SELECT 'usage_hour', sum(requests),
    sum(input_tokens), sum(output_tokens), sum(cached_input_tokens), sum(reasoning_tokens),
    sum(tool_calls), sum(images), sum(audio_ms), sum(gpu_ms), sum(milli_units) FROM usage_hour
UNION ALL
SELECT 'usage_30d', sum(requests),
    sum(input_tokens), sum(output_tokens), sum(cached_input_tokens), sum(reasoning_tokens),
    sum(tool_calls), sum(images), sum(audio_ms), sum(gpu_ms), sum(milli_units) FROM usage_30d
UNION ALL
SELECT 'before', sum(requests),
    sum(input_tokens), sum(output_tokens), sum(cached_input_tokens), sum(reasoning_tokens),
    sum(tool_calls), sum(images), sum(audio_ms), sum(gpu_ms), sum(milli_units)
FROM usage_hour WHERE hour < (SELECT window_start FROM usage_window)
UNION ALL
SELECT 'open', sum(requests),
    sum(input_tokens), sum(output_tokens), sum(cached_input_tokens), sum(reasoning_tokens),
    sum(tool_calls), sum(images), sum(audio_ms), sum(gpu_ms), sum(milli_units)
FROM usage_hour WHERE hour >= coalesce((SELECT closed_through FROM usage_window), '-infinity')
