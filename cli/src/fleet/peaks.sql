-- How high the processes of each service peak: the median, the 95th percentile, and the most.
with sampled as (
    select process, sum(coalesce(peak_bytes_variance, 0)) as variance from sites group by process
),
peaks as (
    select p.service, p.host, cast(p.peak_bytes as double) as bytes, p.peak_bytes, p.peak_rss_bytes,
        coalesce(s.variance, 0) as variance, cast(coalesce(p.sample_bytes, 0) as double) as sample_bytes,
        count(*) over (partition by p.service) as of_service,
        row_number() over (partition by p.service order by p.peak_bytes desc, p.process) as place
    from processes p left join sampled s on s.process = p.process
),
-- An estimate that is taken because it is the highest of several may be further from the truth than one of them: so that each of n
-- is within its margin with 95 %, margins are as wide as 1 / n of the 5 % needs. What has no sample may be there besides.
ranged as (
    select service, host, bytes, peak_bytes, peak_rss_bytes, place,
        greatest(1.96 * sqrt(variance), 3.0 * sample_bytes) as margin,
        greatest(sqrt((power(1.96, 2) + 2 * ln(least(of_service, 20))) * variance),
            (3.0 + ln(least(of_service, 20))) * sample_bytes) as margin_of_20,
        greatest(sqrt((power(1.96, 2) + 2 * ln(of_service)) * variance), (3.0 + ln(of_service)) * sample_bytes) as margin_of_all
    from peaks
),
percentiles as (
    select service, count(*) as processes, count(distinct host) as hosts,
        percentile_cont(0.5) within group (order by bytes) as median_bytes,
        percentile_cont(0.5) within group (order by bytes - margin) as median_low,
        percentile_cont(0.5) within group (order by bytes + margin) as median_high,
        percentile_cont(0.95) within group (order by bytes) as p95_bytes,
        percentile_cont(0.95) within group (order by bytes - margin_of_20) as p95_low,
        percentile_cont(0.95) within group (order by bytes + margin_of_20) as p95_high,
        max(peak_bytes) as most_bytes,
        max(case when place = 1 then margin_of_all end) as most_margin,
        percentile_cont(0.95) within group (order by peak_rss_bytes) as p95_rss_bytes
    from ranged
    group by service
)
select service, processes, hosts, median_bytes as median_peak_bytes,
    greatest(median_high - median_bytes, median_bytes - median_low) as median_peak_bytes_margin,
    p95_bytes as p95_peak_bytes, greatest(p95_high - p95_bytes, p95_bytes - p95_low) as p95_peak_bytes_margin,
    most_bytes as most_peak_bytes, most_margin as most_peak_bytes_margin, p95_rss_bytes as p95_peak_rss_bytes
from percentiles
order by p95_peak_bytes desc, service
