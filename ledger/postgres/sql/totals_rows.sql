-- Totals of what has a row for each event or reservation.
SELECT 'journal', ARRAY[count(*) FILTER (WHERE state IN ('settled', 'cancelled') AND NOT tombstone
        AND type IN ('tollgate.reservation.settled.v1', 'tollgate.reservation.cancelled.v1')),
    sum(input_tokens), sum(output_tokens), sum(cached_input_tokens), sum(reasoning_tokens),
    sum(tool_calls), sum(images), sum(audio_ms), sum(gpu_ms), sum(milli_units)]::text[] FROM journal
UNION ALL
SELECT 'reservations', ARRAY[NULL,
    sum(input_tokens), sum(output_tokens), sum(cached_input_tokens), sum(reasoning_tokens),
    sum(tool_calls), sum(images), sum(audio_ms), sum(gpu_ms), sum(milli_units)]::text[] FROM reservations
