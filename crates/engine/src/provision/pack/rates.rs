//! Prices a core or a GiB on the machines of each kind of pod, by a linear program over resources.
//!
//! Its rows are a kind of pod and a resource, and its machines may be filled with fractions of pods, so pods may be
//! of any number of sizes.

use fixedbitset::FixedBitSet;

use super::fill::Filler;
use super::{DIMENSIONS, Item, Load, MOST_ROWS, Offer, Problem, Relaxation};

/// The number of parts in which the room of the largest machine is counted.
const PARTS: i64 = 10_000;
/// The share of a kind's pods, by what they are worth, that a machine must hold to count for the kind; pods that are
/// too large for it are left out.
const HELD: f64 = 0.9;
/// The cost of a unit of each resource, by kind of pod, in micro-dollars an hour.
pub(super) type Rates = Vec<[f64; DIMENSIONS]>;

/// Returns a lower bound of what a pod of each item costs, in micro-dollars per hour; infinite if no machine holds it. `rates` returns what a unit of each
/// resource is worth on an offer.
///
/// On a machine each pod pays for what it asks for by such rates, in proportion so that the whole room costs the machine's price: pods on it never pay
/// more than that together. Each pod pays on the machine that is best for it.
pub(super) fn least_by(
    problem: &Problem,
    mut rates: impl FnMut(usize) -> [f64; DIMENSIONS],
) -> Vec<f64> {
    let mut least = vec![f64::INFINITY; problem.items.len()];
    for (index, offer) in problem.offers.iter().enumerate() {
        let own = to_price(offer, rates(index));
        for item in offer.fits.ones() {
            let pays = worth_of(&problem.items[item].request, &own);
            least[item] = least[item].min(pays);
        }
    }
    least
}

/// Returns the same where resources are worth this to each kind of pods.
pub(super) fn least(problem: &Problem, rates: &Rates) -> Vec<f64> {
    least_by(problem, |offer| {
        highest_of(problem, rates, &problem.offers[offer])
    })
}

/// Returns what pods on a machine pay for a unit of each resource: for the whole room, the machine's price.
pub(super) fn paid_on(problem: &Problem, rates: &Rates, offer: &Offer) -> [f64; DIMENSIONS] {
    to_price(offer, highest_of(problem, rates, offer))
}

/// Scales rates so that a machine's whole room costs its price.
fn to_price(offer: &Offer, mut rates: [f64; DIMENSIONS]) -> [f64; DIMENSIONS] {
    let room = offer.room.map(|room| room.max(0));
    if worth_of(&room, &rates) <= 0.0 {
        // No rate says what its pods pay for: let each of its resources cost as much as any other.
        rates = room.map(|room| if room > 0 { 1.0 / room as f64 } else { 0.0 });
    }
    let worth = worth_of(&room, &rates);
    if worth > 0.0 {
        rates.map(|rate| rate * offer.price as f64 / worth)
    } else {
        [0.0; DIMENSIONS]
    }
}

/// Returns what all pods cost if a pod of each item costs this, in micro-dollars per hour.
pub(super) fn sum_of(problem: &Problem, least: &[f64]) -> u64 {
    let paid = problem.items.iter().zip(least).map(|(item, least)| {
        if least.is_finite() {
            least * f64::from(item.demand)
        } else {
            // No machine holds it.
            0.0
        }
    });
    paid.sum::<f64>() as u64
}

/// Returns a lower bound of what all pods cost, in micro-dollars per hour.
pub(super) fn bound(problem: &Problem, rates: &Rates) -> u64 {
    sum_of(problem, &least(problem, rates))
}

/// The demand of pending pods for each resource, by kind of pod.
struct ResourceDemand {
    /// The unit of each resource in which amounts are counted: a [`PARTS`]th of the largest room.
    units: Load,
    /// A kind, a resource, and how many units are wanted: none of them is zero.
    rows: Vec<(usize, usize, u32)>,
    /// The kinds of pods that each offer counts for.
    counts: Vec<FixedBitSet>,
    kinds: usize,
}

impl ResourceDemand {
    fn of(problem: &Problem, demand: &[u32]) -> Self {
        let kinds = problem.kinds;
        let mut sums: Vec<[i128; DIMENSIONS]> = vec![[0; DIMENSIONS]; kinds];
        for (item, demand) in problem.items.iter().zip(demand) {
            for (sum, request) in sums[item.kind].iter_mut().zip(item.request) {
                *sum += i128::from(request) * i128::from(*demand);
            }
        }
        let units: Load = std::array::from_fn(|dimension| {
            let rooms = problem.offers.iter().map(|offer| offer.room[dimension]);
            (rooms.max().unwrap_or(0) / PARTS).max(1)
        });
        let mut rows = Vec::new();
        for (kind, sums) in sums.iter().enumerate() {
            for (dimension, sum) in sums.iter().enumerate() {
                // Rows without demand would only cost time: they have no price.
                let wanted = sum / i128::from(units[dimension]);
                if wanted > 0 {
                    rows.push((kind, dimension, u32::try_from(wanted).unwrap_or(u32::MAX)));
                }
            }
        }
        ResourceDemand {
            units,
            rows,
            counts: counting(problem, demand, kinds),
            kinds,
        }
    }

    /// Returns the rows in parts that the linear program has time for, each of whole kinds.
    fn parts(&self) -> Vec<&[(usize, usize, u32)]> {
        let mut parts = Vec::new();
        let mut rest = &self.rows[..];
        while rest.len() > MOST_ROWS {
            // A kind stays in one part, because its resources share machines.
            let kind = rest[MOST_ROWS].0;
            let (part, after) = rest.split_at(rest.partition_point(|row| row.0 < kind));
            parts.push(part);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(rest);
        }
        parts
    }
}

/// Returns what resources cost if this much is wanted, and the machines that hold it cheapest. Kinds that are too
/// many for one program are priced in several, as if kinds of different programs did not share machines.
pub(super) fn price(problem: &Problem, demand: &[u32]) -> (Rates, Vec<usize>) {
    let resource_demand = ResourceDemand::of(problem, demand);
    let mut rates = vec![[0.0; DIMENSIONS]; resource_demand.kinds];
    let mut bought = Vec::new();
    for rows in resource_demand.parts() {
        price_rows(problem, &resource_demand, rows, (&mut rates, &mut bought));
    }
    bought.sort_unstable();
    bought.dedup();
    (rates, bought)
}

/// Solves the program of some rows, each of which is an item.
fn price_rows(
    problem: &Problem,
    resource_demand: &ResourceDemand,
    rows: &[(usize, usize, u32)],
    (rates, bought): (&mut Rates, &mut Vec<usize>),
) {
    let item = |(kind, dimension, demand): &(usize, usize, u32)| {
        let mut request = Load::default();
        request[*dimension] = resource_demand.units[*dimension];
        Item {
            request,
            demand: *demand,
            kind: *kind,
        }
    };
    let mut program = Problem {
        items: rows.iter().map(item).collect(),
        limits: problem.limits.clone(),
        ..Problem::default()
    };
    let mut places = Vec::new();
    let mut opened = FixedBitSet::with_capacity(rows.len());
    for (index, offer) in problem.offers.iter().enumerate() {
        let of_kinds = |set: &FixedBitSet| -> FixedBitSet {
            let mut kinds = kind_set(problem, set);
            kinds.intersect_with(&resource_demand.counts[index]);
            let row = |row: &usize| kinds.contains(rows[*row].0);
            (0..rows.len()).filter(row).collect()
        };
        let own = Offer {
            fits: of_kinds(&offer.fits),
            opens: of_kinds(&offer.opens),
            ..offer.clone()
        };
        if !own.opens.is_clear() {
            opened.union_with(&own.opens);
            program.offers.push(own);
            places.push(index);
        }
    }
    program.prepare();
    let relaxation = Relaxation::in_parts(&program, &mut Filler::new(&program));
    // Rows for which no machine may be opened keep the rate 0: their pods only join others.
    for row in opened.ones() {
        let (kind, dimension, _) = rows[row];
        let value = relaxation.values[row].max(0.0);
        rates[kind][dimension] = value / resource_demand.units[dimension] as f64;
    }
    bought.extend(relaxation.bought.iter().map(|offer| places[*offer]));
}

/// Returns the most that any of these kinds pays for a unit of each resource.
pub(super) fn highest(rates: &Rates, kinds: &[usize]) -> [f64; DIMENSIONS] {
    std::array::from_fn(|dimension| {
        let rates = kinds.iter().map(|kind| rates[*kind][dimension]);
        rates.fold(0.0, f64::max)
    })
}

/// Returns the most that pods on a machine pay for a unit of each resource.
pub(super) fn highest_of(problem: &Problem, rates: &Rates, offer: &Offer) -> [f64; DIMENSIONS] {
    highest(rates, &kinds_of(problem, &offer.fits))
}

/// Returns the kinds of these items.
pub(super) fn kinds_of(problem: &Problem, items: &FixedBitSet) -> Vec<usize> {
    kind_set(problem, items).ones().collect()
}

fn kind_set(problem: &Problem, items: &FixedBitSet) -> FixedBitSet {
    let mut seen = FixedBitSet::new();
    let mut count = 0;
    for item in items.ones() {
        let kind = problem.items[item].kind;
        if !seen.contains(kind) {
            seen.grow_and_insert(kind);
            count += 1;
            if count == problem.kinds {
                break;
            }
        }
    }
    seen
}

/// Returns for each offer the kinds for which it counts, because it holds nearly all pods of them that want a place,
/// or as much of them as any other.
fn counting(problem: &Problem, demand: &[u32], kinds: usize) -> Vec<FixedBitSet> {
    let weight =
        |index: usize, item: &Item| item.request[0].max(1) as f64 * f64::from(demand[index]);
    let mut all = vec![0.0; kinds];
    for (index, item) in problem.items.iter().enumerate() {
        all[item.kind] += weight(index, item);
    }
    let held = |offer: &Offer| {
        let mut held = vec![0.0; kinds];
        for index in offer.fits.ones() {
            let item = &problem.items[index];
            held[item.kind] += weight(index, item);
        }
        held
    };
    let held: Vec<Vec<f64>> = problem.offers.iter().map(held).collect();
    let enough = |kind: usize| {
        let most = held.iter().map(|held| held[kind]).fold(0.0, f64::max);
        // A kind of which no machine holds nearly all still counts for the machines that hold most of it.
        most.min(HELD * all[kind])
    };
    let enough: Vec<f64> = (0..kinds).map(enough).collect();
    let counts = |held: &Vec<f64>| {
        let counts = |kind: &usize| held[*kind] > 0.0 && held[*kind] >= enough[*kind];
        (0..kinds).filter(counts).collect()
    };
    held.iter().map(counts).collect()
}

pub(super) fn worth_of(load: &Load, rates: &[f64; DIMENSIONS]) -> f64 {
    let worth = (0..DIMENSIONS).map(|dimension| load[dimension] as f64 * rates[dimension]);
    worth.sum()
}

/// Returns what a pod of each item is worth: more than nothing, or it would never be taken along.
pub(super) fn values(problem: &Problem, rates: &Rates) -> Vec<f64> {
    let cheapest = problem
        .offers
        .first()
        .map_or(1.0, |offer| offer.price as f64);
    let dearest = problem
        .offers
        .last()
        .map_or(1.0, |offer| offer.price as f64);
    let opened = |item: usize| {
        problem
            .offers
            .iter()
            .any(|offer| offer.opens.contains(item))
    };
    let value = |(index, item): (usize, &Item)| {
        if opened(index) {
            worth_of(&item.request, &rates[item.kind]).max(cheapest / 1000.0)
        } else {
            // No machine is bought for it: it has to find room.
            dearest
        }
    };
    problem.items.iter().enumerate().map(value).collect()
}
