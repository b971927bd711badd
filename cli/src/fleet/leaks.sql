-- What a process of each release leaks, and how fast its live memory grows, by service. Imports and the arenas of Python's
-- allocators stay live without being leaked: they stand apart. What has no sample may be there besides; mappings are exact.
with ends as (
    select w.process, min(w.window_number) as first_window, max(w.window_number) as last_window,
        max(w.end_ns) - min(w.end_ns) as lasted_ns
    from windows w join processes p on p.process = w.process
    where w.end_ns <= coalesce(p.finalizing_ns, p.duration_ns)
    group by w.process
),
-- Chance as of growth: at most that of what was allocated and freed in between, and at most that of both ends.
of_stacks as (
    select w.process,
        sum(case when w.window_number = e.last_window then w.live_bytes else 0 end)
            - sum(case when w.window_number = e.first_window then w.live_bytes else 0 end) as bytes,
        least(sum(case when w.window_number in (e.first_window, e.last_window) then coalesce(w.live_bytes_variance, 0) else 0 end),
            sum(case when w.window_number > e.first_window and w.window_number <= e.last_window
                then coalesce(w.allocated_bytes_variance, 0) + coalesce(w.freed_bytes_variance, 0) else 0 end)) as variance,
        max(e.lasted_ns) as lasted_ns
    from windows w join ends e on e.process = w.process
    where e.last_window > e.first_window
    group by w.process, coalesce(w.stack, 0)
),
grown as (
    select process, sum(bytes) as bytes, sum(variance) as variance, max(lasted_ns) as lasted_ns from of_stacks group by process
),
parts as (
    select process, leaked_bytes, coalesce(leaked_bytes_variance, 0) as variance,
        case when allocator in ('pymalloc_arena', 'mimalloc_arena') then 'arenas' when whose = 'imports' then 'imports'
            else 'leaked' end as part
    from sites
),
held as (
    select process, sum(case when part = 'leaked' then leaked_bytes else 0 end) as leaked_bytes,
        sum(case when part = 'imports' then leaked_bytes else 0 end) as imports_bytes,
        sum(case when part = 'arenas' then leaked_bytes else 0 end) as arenas_bytes,
        sum(case when part = 'leaked' then variance else 0 end) as leaked_variance,
        sum(case when part = 'imports' then variance else 0 end) as imports_variance,
        sum(case when part = 'arenas' then variance else 0 end) as arenas_variance
    from parts group by process
),
of_processes as (
    select p.service, p.release, coalesce(h.leaked_bytes, 0) as leaked_bytes, coalesce(h.imports_bytes, 0) as imports_bytes,
        coalesce(h.arenas_bytes, 0) as arenas_bytes, coalesce(h.leaked_variance, 0) as leaked_variance,
        coalesce(h.imports_variance, 0) as imports_variance, coalesce(h.arenas_variance, 0) as arenas_variance,
        g.bytes as grown_bytes, g.variance as grown_variance, g.lasted_ns,
        cast(coalesce(p.sample_bytes, 0) as double) as sample_bytes,
        case when g.process is not null then cast(coalesce(p.sample_bytes, 0) as double) end as grown_sample_bytes,
        count(*) over (partition by p.service, p.release) as of_release,
        row_number() over (partition by p.service, p.release order by coalesce(h.leaked_bytes, 0) desc, p.process) as place
    from processes p left join grown g on g.process = p.process left join held h on h.process = p.process
)
select service, release, count(*) as processes, avg(leaked_bytes) as leaked_bytes,
    greatest(1.96 * sqrt(sum(leaked_variance)), 3.0 * max(sample_bytes)) / count(*) as leaked_bytes_margin,
    cast(max(leaked_bytes) as bigint) as most_leaked_bytes,
    -- So wide that all of them are within theirs with 95 %, the highest estimate, too.
    max(case when place = 1 then greatest(sqrt((power(1.96, 2) + 2 * ln(of_release)) * leaked_variance),
        (3.0 + ln(of_release)) * sample_bytes) end) as most_leaked_bytes_margin,
    avg(imports_bytes) as imports_bytes,
    greatest(1.96 * sqrt(sum(imports_variance)), 3.0 * max(sample_bytes)) / count(*) as imports_bytes_margin,
    avg(arenas_bytes) as arenas_bytes, 1.96 * sqrt(sum(arenas_variance)) / count(*) as arenas_bytes_margin,
    sum(grown_bytes) / (sum(lasted_ns) / 3.6e12) as growth_bytes_per_hour,
    greatest(1.96 * sqrt(sum(grown_variance)), 3.0 * max(grown_sample_bytes)) / (sum(lasted_ns) / 3.6e12)
        as growth_bytes_per_hour_margin
from of_processes
group by service, release
order by leaked_bytes desc, service, release
