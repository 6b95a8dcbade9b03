-- Tenants whose rolling sum is not the sum of the closed hours in the window.
-- A tenant without use may be missing on either side.
SELECT tenant_id, coalesce(h.figures, array_fill(0::numeric, '{10}'))::text[], coalesce(w.figures, array_fill(0::numeric, '{10}'))::text[]
FROM (
    SELECT tenant_id, ARRAY[sum(requests), sum(input_tokens), sum(output_tokens), sum(cached_input_tokens),
        sum(reasoning_tokens), sum(tool_calls), sum(images), sum(audio_ms), sum(gpu_ms), sum(milli_units)] AS figures
    FROM usage_hour, usage_window
    WHERE hour >= window_start AND hour < closed_through
    GROUP BY tenant_id
) h
FULL JOIN (
    SELECT tenant_id, ARRAY[requests, input_tokens, output_tokens, cached_input_tokens,
        reasoning_tokens, tool_calls, images, audio_ms, gpu_ms, milli_units]::numeric[] AS figures
    FROM usage_30d
) w USING (tenant_id)
WHERE coalesce(h.figures, array_fill(0::numeric, '{10}')) <> coalesce(w.figures, array_fill(0::numeric, '{10}'))
ORDER BY tenant_id
LIMIT $1
