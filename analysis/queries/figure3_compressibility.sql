-- Figure 3: distinct chunks by compression ratio (compressed size / size), in steps of 0.01: how
-- many, their bytes, and the bytes that compression saves. The step 100 has what does not shrink.
-- Only chunks whose compressed size was measured.
WITH once AS (
    SELECT any_value(length_bytes) AS length, any_value(compressed_bytes) AS compressed
    FROM distinct_chunks GROUP BY fp_high, fp_low
)
SELECT ceil(100 * compressed / length)::INT AS ratio_percent,
       count(*) AS chunks,
       sum(length)::BIGINT AS data_bytes,
       sum(length - compressed)::BIGINT AS saved_bytes
FROM once
WHERE compressed IS NOT NULL
GROUP BY ratio_percent
ORDER BY ratio_percent;
