//! `cargo bench -p mullion-engine`: pods per second of every scenario, what a pod costs in clusters of all sizes, and
//! what taking a what-if back costs. On one core; `mullion bench engine` measures the same runs at any size.

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mullion_engine::scenario::Scenario;

/// Pods placed before measuring, so that every board is there.
const WARM: usize = 10_000;
const MEASURED: usize = 40_000;

fn scenarios(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("scenario");
    group.sample_size(10);
    for scenario in Scenario::ALL {
        let (nodes, pods) = scenario.size();
        group.throughput(Throughput::Elements(pods as u64));
        group.bench_function(scenario.name(), |bencher| {
            bencher.iter_batched_ref(
                || scenario.prepare(nodes, pods),
                |run| run.run(),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// The same pods in clusters of 1,000 to 100,000 nodes.
fn growth(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("growth");
    group.sample_size(10);
    group.throughput(Throughput::Elements(MEASURED as u64));
    for scenario in [Scenario::Basic, Scenario::Mixed, Scenario::ZoneSpread] {
        for nodes in [1_000, 10_000, 100_000] {
            let id = BenchmarkId::new(scenario.name(), nodes);
            group.bench_function(id, |bencher| {
                bencher.iter_batched_ref(
                    || {
                        let mut run = scenario.prepare(nodes, WARM + MEASURED);
                        run.place(WARM);
                        run
                    },
                    |run| run.run(),
                    BatchSize::PerIteration,
                );
            });
        }
    }
    group.finish();
}

/// What-ifs of so many pods in a cluster of 5,000 nodes and 50,000 pods, checkpoint to rollback.
fn rollback(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rollback");
    let mut run = Scenario::Basic.prepare(5_000, 60_000);
    run.place(50_000);
    for pods in [10, 100, 1_000, 10_000] {
        group.throughput(Throughput::Elements(pods as u64));
        group.bench_function(BenchmarkId::from_parameter(pods), |bencher| {
            bencher.iter(|| run.what_if(pods));
        });
    }
    group.finish();
}

criterion_group!(benches, scenarios, growth, rollback);
criterion_main!(benches);
