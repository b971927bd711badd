-- What a process of each release leaks, and how fast its live memory grows, by service. Imports and the arenas of Python's
-- allocators stay live without being leaked: they stand apart.
with ends as (
    select w.process, min(w.window_number) as first_window, max(w.window_number) as last_window,
        max(w.end_ns) - min(w.end_ns) as lasted_ns
    from windows w join processes p on p.process = w.process
    where w.end_ns <= coalesce(p.finalizing_ns, p.duration_ns)
    group by w.process
),
grown as (
    select w.process,
        sum(case when w.window_number = e.last_window then w.live_bytes else 0 end)
            - sum(case when w.window_number = e.first_window then w.live_bytes else 0 end) as bytes,
        sum(case when w.window_number in (e.first_window, e.last_window) then coalesce(w.live_bytes_variance, 0) else 0 end)
            as variance,
        max(e.lasted_ns) as lasted_ns
    from windows w join ends e on e.process = w.process
    where e.last_window > e.first_window
    group by w.process
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
        sum(case when part = 'leaked' then variance else 0 end) as variance
    from parts group by process
)
select p.service, p.release, count(*) as processes, avg(coalesce(h.leaked_bytes, 0)) as leaked_bytes,
    1.96 * sqrt(sum(coalesce(h.variance, 0))) / count(*) as leaked_bytes_margin,
    cast(max(coalesce(h.leaked_bytes, 0)) as bigint) as most_leaked_bytes,
    avg(coalesce(h.imports_bytes, 0)) as imports_bytes, avg(coalesce(h.arenas_bytes, 0)) as arenas_bytes,
    sum(g.bytes) / (sum(g.lasted_ns) / 3.6e12) as growth_bytes_per_hour,
    1.96 * sqrt(sum(g.variance)) / (sum(g.lasted_ns) / 3.6e12) as growth_bytes_per_hour_margin
from processes p left join grown g on g.process = p.process left join held h on h.process = p.process
group by p.service, p.release
order by leaked_bytes desc, p.service, p.release
