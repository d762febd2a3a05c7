-- Distinct chunks by how often they occur (powers of two), for the chunking that the view chunks
-- shows: frequency of chunks against their size (seed 002, figure 2.3).
WITH once AS (
    SELECT count(*) AS copies, any_value(length_bytes) AS length
    FROM chunks GROUP BY fp_high, fp_low
)
SELECT getvariable('chunking') AS chunking,
       (1::BIGINT << floor(log2(copies))::INT) AS copies_min,
       scaled(count(*)) AS chunks,
       scaled(sum(length)) AS distinct_bytes,
       scaled(sum(length * copies)) AS occurring_bytes
FROM once
GROUP BY copies_min
ORDER BY copies_min;
