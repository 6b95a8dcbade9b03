-- Moves the rolling window from [$1, $2) to [$3, $4): adds the closed hours that
-- come in and subtracts those that leave. $3 >= $1 and $4 >= $2.
INSERT INTO usage_30d AS u (
    tenant_id, requests,
    input_tokens, output_tokens, cached_input_tokens, reasoning_tokens,
    tool_calls, images, audio_ms, gpu_ms, milli_units)
SELECT tenant_id,
    sum(sign * requests),
    sum(sign * input_tokens), sum(sign * output_tokens),
    sum(sign * cached_input_tokens), sum(sign * reasoning_tokens),
    sum(sign * tool_calls), sum(sign * images),
    sum(sign * audio_ms), sum(sign * gpu_ms), sum(sign * milli_units)
FROM (
    SELECT 1 AS sign, h.* FROM usage_hour h
        WHERE hour >= greatest($2::timestamptz, $3::timestamptz) AND hour < $4::timestamptz
    UNION ALL
    SELECT -1, h.* FROM usage_hour h
        WHERE hour >= $1::timestamptz AND hour < least($3::timestamptz, $2::timestamptz)
) moved
GROUP BY tenant_id
ORDER BY tenant_id
ON CONFLICT (tenant_id) DO UPDATE SET
    requests            = u.requests + excluded.requests,
    input_tokens        = u.input_tokens + excluded.input_tokens,
    output_tokens       = u.output_tokens + excluded.output_tokens,
    cached_input_tokens = u.cached_input_tokens + excluded.cached_input_tokens,
    reasoning_tokens    = u.reasoning_tokens + excluded.reasoning_tokens,
    tool_calls          = u.tool_calls + excluded.tool_calls,
    images              = u.images + excluded.images,
    audio_ms            = u.audio_ms + excluded.audio_ms,
    gpu_ms              = u.gpu_ms + excluded.gpu_ms,
    milli_units         = u.milli_units + excluded.milli_units
