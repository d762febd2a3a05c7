-- Table 4: what is saved by looking for duplicates across datasets, beyond looking in each alone.
-- No compression. saved_* in bytes.
WITH per_dataset AS (
    SELECT dataset, fp_high, fp_low, any_value(length_bytes) AS length,
           count(*) FILTER (first_in_dataset) AS firsts
    FROM chunks JOIN (SELECT file, first_in_dataset FROM files) USING (file)
    GROUP BY dataset, fp_high, fp_low
), per_group AS (
    SELECT g.name, any_value(length) AS length, count(*) AS in_datasets, sum(firsts) AS firsts
    FROM per_dataset JOIN dataset_groups AS g USING (dataset)
    GROUP BY g.name, fp_high, fp_low
), sums AS (
    SELECT name,
           moments(length * in_datasets, length * firsts) AS alone,
           moments(length, length * firsts) AS together,
           moments(length * (in_datasets - 1), length * firsts) AS benefit
    FROM per_group GROUP BY name
), totals AS (
    SELECT g.name, sum(d.data_bytes) AS data_bytes, sum(d.firsts) AS firsts, count(*) AS datasets
    FROM dataset_groups AS g JOIN (
        SELECT dataset, sum(length_bytes) AS data_bytes,
               sum(chunk_bytes) FILTER (first_in_dataset) AS firsts
        FROM files_in_chunks GROUP BY dataset) AS d USING (dataset)
    GROUP BY g.name
)
SELECT name, datasets, data_bytes::DOUBLE AS data_bytes,
       data_bytes - estimate(alone, firsts) AS saved_alone_bytes,
       data_bytes - estimate(alone, firsts) + estimate(benefit, firsts) AS saved_together_bytes,
       estimate(benefit, firsts) / data_bytes AS benefit,
       deviation(benefit) / data_bytes AS benefit_deviation
FROM sums JOIN totals USING (name)
WHERE data_bytes > 0
ORDER BY datasets DESC, name;
