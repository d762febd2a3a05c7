-- Files and bytes by the days since the last change: what a minimum age would leave alone.
WITH aged AS (
    SELECT length_bytes, greatest(0, getvariable('collected_s') - changed_s) / 86400 AS days
    FROM files
)
SELECT days_max, count(*) AS files, sum(length_bytes)::BIGINT AS data_bytes
FROM aged JOIN (VALUES (1), (3), (7), (30), (90), (365)) AS limits (days_max) ON days < days_max
GROUP BY days_max
ORDER BY days_max;
