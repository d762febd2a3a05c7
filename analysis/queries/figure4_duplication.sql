-- Figure 4: distinct chunks by how often they occur, in powers of two: the bin n has the chunks
-- with at least n and fewer than 2n copies. occurring_bytes counts every copy.
WITH once AS (
    SELECT sum(copies) AS copies, any_value(length_bytes) AS length
    FROM distinct_chunks GROUP BY fp_high, fp_low
)
SELECT (1::BIGINT << floor(log2(copies))::INT) AS copies_min,
       count(*) AS chunks,
       sum(length)::BIGINT AS distinct_bytes,
       sum(length * copies)::BIGINT AS occurring_bytes
FROM once
GROUP BY copies_min
ORDER BY copies_min;
