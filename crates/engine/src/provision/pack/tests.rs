//! Packings of random problems against slow counting, and small ones against every packing there is.

use super::fill::{ALIKE, Filler, Weights};
use super::knapsack::Knapsack;
use super::rounding::{Solution, Trials};
use super::*;

const EFFORT: u64 = 50_000;

/// A number that is the same every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn all(items: usize) -> FixedBitSet {
    (0..items).collect()
}

fn load(cpu: i64, memory: i64) -> Load {
    let mut load = Load::default();
    (load[0], load[1], load[2]) = (cpu, memory, 1);
    load
}

fn offer(price: u64, cpu: i64, memory: i64, items: usize) -> Offer {
    let mut room = load(cpu, memory);
    room[2] = 110;
    Offer {
        price,
        room,
        fits: all(items),
        opens: all(items),
        pool: 0,
        takes: Load::default(),
    }
}

fn random(dice: &mut Dice, items: usize, most: u64) -> Problem {
    let item = |dice: &mut Dice| Item {
        request: load(1 + dice.below(8) as i64, 1 + dice.below(8) as i64),
        demand: 1 + dice.below(most) as u32,
        kind: 0,
    };
    let items: Vec<Item> = (0..items).map(|_| item(dice)).collect();
    let mut offers = Vec::new();
    for size in 1..4_i64 {
        let price = 100 * size as u64 + dice.below(60);
        offers.push(offer(
            price,
            8 * size,
            4 * size + dice.below(9) as i64 + 4,
            items.len(),
        ));
    }
    let mut rules = Vec::new();
    if dice.below(2) == 0 {
        let most = 1 + dice.below(2) as u32;
        rules.push(Rule {
            subjects: vec![0],
            members: vec![0],
            most,
        });
    }
    if items.len() > 1 && dice.below(2) == 0 {
        rules.push(Rule {
            subjects: vec![0],
            members: vec![1],
            most: 0,
        });
    }
    let mut problem = Problem {
        items,
        offers,
        rules,
        limits: vec![[i64::MAX; DIMENSIONS]],
        ..Problem::default()
    };
    problem.prepare();
    problem
}

/// What is wrong with a packing, told by counting.
fn fault(problem: &Problem, packing: &Packing) -> Option<String> {
    let mut placed = vec![0; problem.items.len()];
    let mut price = 0;
    for bin in &packing.bins {
        let mut used = Load::default();
        for (item, count) in &bin.pods {
            placed[*item] += count;
            for (used, request) in used.iter_mut().zip(problem.items[*item].request) {
                *used += request * i64::from(*count);
            }
        }
        let offer = problem.offer(bin.offer);
        price += offer.price;
        if used.iter().zip(offer.room).any(|(used, room)| *used > room) {
            return Some(format!("{bin:?} holds more than {offer:?}"));
        }
        let on_it = |item: usize| {
            bin.pods
                .iter()
                .filter(|pod| pod.0 == item)
                .map(|pod| pod.1)
                .sum::<u32>()
        };
        for rule in &problem.rules {
            let members: u32 = rule.members.iter().map(|member| on_it(*member)).sum();
            let is_subject = rule.subjects.iter().any(|subject| on_it(*subject) > 0);
            if is_subject && members > rule.most {
                return Some(format!("{bin:?} breaks {rule:?}"));
            }
        }
    }
    for (item, placed) in placed.iter().enumerate() {
        if placed + packing.left[item] != problem.items[item].demand {
            return Some(format!("item {item} is placed {placed} times"));
        }
    }
    (price != packing.price).then(|| format!("costs {price}"))
}

/// The least that any packing of these pods costs: every first machine, then the rest. None where there is none.
fn least(
    problem: &Problem,
    left: &[u32],
    known: &mut std::collections::BTreeMap<Vec<u32>, Option<u64>>,
) -> Option<u64> {
    if left.iter().all(|left| *left == 0) {
        return Some(0);
    }
    if let Some(known) = known.get(left) {
        return *known;
    }
    let mut best: Option<u64> = None;
    let mut counts = vec![0; left.len()];
    // Every number of pods of each item, as on an odometer.
    while next(&mut counts, left) {
        let pods: Vec<(usize, u32)> = rounding::pods(&counts);
        if !problem.together(&pods) {
            continue;
        }
        let Some(offer) = problem.cheapest_for(&pods, &problem.limits) else {
            continue;
        };
        let rest: Vec<u32> = left
            .iter()
            .zip(&counts)
            .map(|(left, count)| left - count)
            .collect();
        if let Some(rest) = least(problem, &rest, known) {
            let price = problem.offers[offer].price + rest;
            best = Some(best.map_or(price, |best| best.min(price)));
        }
    }
    known.insert(left.to_vec(), best);
    best
}

fn next(counts: &mut [u32], most: &[u32]) -> bool {
    for (count, most) in counts.iter_mut().zip(most) {
        if *count < *most {
            *count += 1;
            return true;
        }
        *count = 0;
    }
    false
}

#[test]
fn a_packing_holds_together_and_costs_no_less_than_its_bound() {
    let mut dice = Dice(7);
    for round in 0..300 {
        let items = 1 + dice.below(12) as usize;
        let problem = random(&mut dice, items, 40);
        let packing = problem.pack(EFFORT).packing;
        assert_eq!(fault(&problem, &packing), None, "round {round}");
        assert!(packing.left.iter().all(|left| *left == 0), "round {round}");
        assert!(
            packing.bound <= packing.price,
            "round {round}: {} {}",
            packing.bound,
            packing.price
        );
        assert_eq!(
            packing,
            problem.pack(EFFORT).packing,
            "round {round}: the same every time"
        );
    }
}

#[test]
fn pods_of_many_sizes_are_packed_close_to_their_bound() {
    let mut dice = Dice(21);
    let mut sums = (0, 0);
    for round in 0..12 {
        let items = 301 + dice.below(900) as usize;
        let mut problem = random(&mut dice, items, 3);
        problem.rules.clear();
        for offer in &mut problem.offers {
            // Rooms for some dozens of pods.
            offer.room[0] *= 400;
            offer.room[1] *= 400;
        }
        for item in &mut problem.items {
            item.request = load(50 + dice.below(400) as i64, 50 + dice.below(400) as i64);
        }
        if dice.below(2) == 0 {
            // Some machines are not for all.
            for item in 0..items {
                problem.items[item].kind = item % 2;
                problem.offers[1].fits.set(item, item % 2 == 0);
                problem.offers[1].opens.set(item, item % 2 == 0);
            }
        }
        problem.prepare();
        let packing = problem.pack(EFFORT).packing;
        assert_eq!(fault(&problem, &packing), None, "round {round}");
        assert!(packing.left.iter().all(|left| *left == 0), "round {round}");
        let (price, bound) = (packing.price, packing.bound);
        assert!(
            bound > 0 && bound <= price,
            "round {round}: {bound} {price}"
        );
        let items = problem.items.iter().enumerate();
        let all = items.map(|(item, own)| ZonalDemand::Split(own.demand, vec![(item, own.demand)]));
        let least = problem.least_for(&all.collect::<Vec<_>>(), None);
        assert!(
            least > 0 && least <= price,
            "round {round}: {least} {price}"
        );
        // Of some thirty machines one is three percent.
        assert!(price * 100 <= bound * 110, "round {round}: {bound} {price}");
        sums.0 += price;
        sums.1 += bound;
        assert_eq!(
            packing,
            problem.pack(EFFORT).packing,
            "round {round}: the same every time"
        );
    }
    let (prices, bounds) = sums;
    assert!(prices * 100 <= bounds * 103, "{prices} {bounds}");
}

#[test]
fn pods_of_many_kinds_are_packed_on_the_machines_of_their_kind() {
    let mut dice = Dice(29);
    let (kinds, sizes) = (120, 3);
    let items = kinds * sizes;
    let mut problem = random(&mut dice, items, 9);
    problem.rules.clear();
    for (index, item) in problem.items.iter_mut().enumerate() {
        item.request = load(50 + dice.below(400) as i64, 50 + dice.below(400) as i64);
        item.kind = index / sizes;
    }
    problem.offers.clear();
    for kind in 0..kinds {
        // Two machines are for this kind, and a third one, which costs far too much, holds nothing.
        for (size, price) in [(1_000, 100), (2_000, 190), (0, 900)] {
            let mut own = offer(price, size, size, items);
            let of_kind = (kind * sizes)..((kind + 1) * sizes);
            own.fits = FixedBitSet::with_capacity(items);
            own.fits.insert_range(of_kind);
            if size == 0 {
                own.fits.clear();
            }
            own.opens = own.fits.clone();
            problem.offers.push(own);
        }
    }
    problem.offers.sort_by_key(|offer| offer.price);
    problem.prepare();
    let packing = problem.pack(EFFORT).packing;
    assert_eq!(fault(&problem, &packing), None);
    assert!(packing.left.iter().all(|left| *left == 0));
    let (price, bound) = (packing.price, packing.bound);
    // A kind has some four machines: the last is hardly ever full.
    assert!(bound > 0 && bound <= price, "{bound} {price}");
    assert!(price * 100 <= bound * 145, "{bound} {price}");
}

#[test]
fn many_sizes_with_rules_and_limits_keep_them() {
    let mut dice = Dice(23);
    for round in 0..6 {
        let items = 301 + dice.below(200) as usize;
        let mut problem = random(&mut dice, items, 3);
        problem.rules = (0..items)
            .step_by(3)
            .map(|item| Rule {
                subjects: vec![item],
                members: vec![item, (item + 1) % items],
                most: 1,
            })
            .collect();
        for offer in &mut problem.offers {
            offer.takes[0] = 1;
        }
        problem.limits[0][0] = i64::MAX - 1;
        problem.prepare();
        let packing = problem.pack(EFFORT).packing;
        assert_eq!(fault(&problem, &packing), None, "round {round}");
        assert!(packing.left.iter().all(|left| *left == 0), "round {round}");
        problem.limits[0][0] = packing.bins.len() as i64 / 2;
        let limited = problem.pack(EFFORT).packing;
        assert_eq!(fault(&problem, &limited), None, "round {round}");
        assert!(
            limited.bins.len() as i64 <= problem.limits[0][0],
            "round {round}"
        );
        assert!(limited.left.iter().any(|left| *left > 0), "round {round}");
    }
}

#[test]
fn small_packings_are_as_cheap_as_the_cheapest_there_is() {
    let mut dice = Dice(11);
    let (mut ours, mut cheapest, mut equal) = (0, 0, 0);
    for round in 0..150 {
        let items = 1 + dice.below(3) as usize;
        let problem = random(&mut dice, items, 5);
        let demand: Vec<u32> = problem.items.iter().map(|item| item.demand).collect();
        let best = least(&problem, &demand, &mut Default::default()).expect("there is one");
        let packing = problem.pack(EFFORT).packing;
        assert!(
            packing.price >= best && packing.bound <= best,
            "round {round}"
        );
        ours += packing.price;
        cheapest += best;
        equal += usize::from(packing.price == best);
    }
    assert!(
        equal >= 148,
        "{equal} of 150 are the cheapest; {ours} for {cheapest}"
    );
}

#[test]
fn machines_whose_fillings_are_kept_are_filled_as_afresh() {
    let mut dice = Dice(11);
    let skewed: Weights = std::array::from_fn(|dimension| 1.0 / (1 + dimension) as f64);
    let weights = [ALIKE, skewed];
    for _ in 0..300 {
        let items = 1 + dice.below(8) as usize;
        let mut problem = random(&mut dice, items, 30);
        // Some machines are bought for some pods alone, so that the first pod is not the one with most value for its room.
        for offer in &mut problem.offers {
            offer.opens = (0..items).filter(|_| dice.below(3) > 0).collect();
        }
        let values: Vec<f64> = (0..items).map(|_| 1.0 + dice.below(50) as f64).collect();
        let offers: Vec<usize> = (0..problem.offers.len()).collect();
        let demand: Vec<u32> = problem.items.iter().map(|item| item.demand).collect();
        let mut solution = Solution::of_nodes(&problem, &demand);
        let (mut filler, mut other) = (Filler::new(&problem), Filler::new(&problem));
        let mut trials = Trials::of((&offers, &values), &weights, &filler);
        loop {
            let rest = solution.rest();
            let kept = trials.best(&problem, (&rest, &solution), &mut filler);
            let mut afresh = Trials::of((&offers, &values), &weights, &other);
            let afresh = afresh.best(&problem, (&rest, &solution), &mut other);
            let parts = |bin: &Option<Bin>| bin.as_ref().map(|bin| (bin.offer, bin.pods.clone()));
            assert_eq!(parts(&kept), parts(&afresh));
            assert_eq!(filler.work, other.work);
            let Some(bin) = kept else { break };
            solution.put(&problem, bin);
        }
    }
}

#[test]
fn limits_hold_and_what_they_keep_out_is_reported() {
    let mut problem = random(&mut Dice(3), 1, 1);
    problem.rules.clear();
    problem.items = vec![Item {
        request: load(8, 1),
        demand: 10,
        kind: 0,
    }];
    problem
        .offers
        .iter_mut()
        .for_each(|offer| offer.takes[0] = 1);
    problem.limits[0][0] = 2;
    problem.prepare();
    let packing = problem.pack(EFFORT).packing;
    assert_eq!(packing.bins.len(), 2);
    // The largest machine holds three.
    assert_eq!(packing.left, [4]);
}

#[test]
fn machines_that_are_there_are_filled_first() {
    let mut problem = random(&mut Dice(5), 2, 6);
    problem.rules.clear();
    problem.nodes = vec![Offer {
        price: 0,
        ..offer(0, 1000, 1000, 2)
    }];
    problem.prepare();
    let packing = problem.pack(EFFORT).packing;
    assert_eq!((packing.price, packing.bins.len()), (0, 1));
}

#[test]
fn a_machine_is_bought_for_pods_that_may_have_it_and_others_join_them() {
    let mut problem = random(&mut Dice(9), 2, 2);
    problem.rules.clear();
    problem.items = vec![
        Item {
            request: load(1, 1),
            demand: 1,
            kind: 0,
        },
        Item {
            request: load(1, 1),
            demand: 2,
            kind: 0,
        },
    ];
    problem.offers = vec![offer(100, 8, 8, 2)];
    problem.offers[0].opens = std::iter::once(0).collect();
    problem.prepare();
    let packing = problem.pack(EFFORT).packing;
    assert_eq!(
        packing.bins,
        [Bin {
            offer: 0,
            pods: vec![(0, 1), (1, 2)]
        }]
    );
    problem.items[0].demand = 0;
    assert_eq!(problem.pack(EFFORT).packing.left, [0, 2]);
}

/// Every way to divide pods among zones, no zone with more than this beyond the fewest.
fn divided(pods: u32, zones: usize, skew: u32) -> Vec<Vec<u32>> {
    let mut ways = Vec::new();
    let mut counts = vec![0; zones];
    let most = vec![pods; zones];
    loop {
        let (fewest, highest) = (counts.iter().min(), counts.iter().max());
        let skewed = highest
            .zip(fewest)
            .map_or(0, |(highest, fewest)| highest - fewest);
        if counts.iter().sum::<u32>() == pods && skewed <= skew {
            ways.push(counts.clone());
        }
        if !next(&mut counts, &most) {
            return ways;
        }
    }
}

#[test]
fn what_pods_cost_at_least_holds_for_every_way_to_divide_them_among_zones() {
    let mut dice = Dice(31);
    let (mut bounds, mut cheapest) = (0, 0);
    for round in 0..120 {
        let classes = 1 + dice.below(2) as usize;
        let zones = 2 + dice.below(2) as usize;
        let mut problem = random(&mut dice, classes, 4);
        problem.rules.clear();
        // An item for each class and zone, and machines of each zone.
        let (items, offers) = (problem.items.clone(), std::mem::take(&mut problem.offers));
        problem.items.clear();
        for (class, item) in items.iter().enumerate() {
            for zone in 0..zones {
                let kind = class * zones + zone;
                problem.items.push(Item {
                    kind,
                    ..item.clone()
                });
            }
        }
        for zone in 0..zones {
            for own in &offers {
                let mut own = own.clone();
                own.price += 10 * dice.below(4);
                own.fits = (0..classes).map(|class| class * zones + zone).collect();
                own.opens = own.fits.clone();
                problem.offers.push(own);
            }
        }
        problem.offers.sort_by_key(|offer| offer.price);
        // By class: the ways to divide its pods, and what is said of them.
        let mut ways: Vec<Vec<Vec<u32>>> = Vec::new();
        let mut demands = Vec::new();
        for (class, item) in items.iter().enumerate() {
            let places = (0..zones).map(|zone| class * zones + zone);
            let pods = item.demand;
            if dice.below(3) == 0 {
                let one =
                    |place: usize| (0..zones).map(move |zone| if zone == place { pods } else { 0 });
                ways.push((0..zones).map(|place| one(place).collect()).collect());
                demands.push(ZonalDemand::OneOf(
                    places.map(|item| vec![(item, pods)]).collect(),
                ));
            } else {
                let skew = 1 + dice.below(2) as u32;
                let most = pods.min(pods / zones as u32 + skew);
                ways.push(divided(pods, zones, skew));
                demands.push(ZonalDemand::Split(
                    pods,
                    places.map(|item| (item, most)).collect(),
                ));
            }
        }
        problem.prepare();
        let mut known = Default::default();
        let mut best: Option<u64> = None;
        let mut chosen = vec![0; classes];
        let last: Vec<u32> = ways.iter().map(|ways| ways.len() as u32 - 1).collect();
        loop {
            let demand = chosen.iter().zip(&ways);
            let demand = demand.flat_map(|(way, ways)| ways[*way as usize].iter().copied());
            let price = least(&problem, &demand.collect::<Vec<u32>>(), &mut known);
            let price = price.expect("there is a way");
            best = Some(best.map_or(price, |best| best.min(price)));
            if !next(&mut chosen, &last) {
                break;
            }
        }
        let best = best.expect("there is one");
        // Values of pods that were divided in some way, and any values.
        let packed = problem.pack(EFFORT);
        let any: Vec<f64> = problem
            .items
            .iter()
            .map(|_| dice.below(200) as f64)
            .collect();
        for values in [None, Some(&packed.values[..]), Some(&any[..])] {
            let bound = problem.least_for(&demands, values);
            assert!(bound <= best, "round {round}: {bound} {best}");
        }
        bounds += problem.least_for(&demands, Some(&packed.values));
        cheapest += best;
    }
    assert!(bounds * 100 >= cheapest * 75, "{bounds} {cheapest}");
}

/// A machine holds a handful of these pods: which of them share one decides what it costs.
#[test]
fn pods_of_many_sizes_share_machines_that_hold_few_of_them() {
    let mut dice = Dice(31);
    let items = 3000;
    let mut problem = Problem {
        limits: vec![[i64::MAX; DIMENSIONS]],
        ..Problem::default()
    };
    for _ in 0..items {
        problem.items.push(Item {
            request: load(50 + dice.below(3950) as i64, 64 + dice.below(16_320) as i64),
            demand: 1,
            kind: 0,
        });
    }
    for size in [2, 4, 8, 16] {
        for (memory, price) in [(2, 85), (4, 96), (8, 126)] {
            let (cpu, memory) = (size * 1000 - 80, size * memory * 1024 - 700);
            problem
                .offers
                .push(offer(size as u64 * price, cpu, memory, items));
        }
    }
    for offer in &mut problem.offers {
        offer.fits = (0..items)
            .filter(|item| within(&problem.items[*item].request, &offer.room))
            .collect();
        offer.opens = offer.fits.clone();
    }
    problem.offers.sort_by_key(|offer| offer.price);
    problem.prepare();
    let packing = problem.pack(EFFORT).packing;
    assert_eq!(fault(&problem, &packing), None);
    assert!(packing.left.iter().all(|left| *left == 0));
    let (price, bound) = (packing.price, packing.bound);
    // Priced and filled by resources alone it costs 5.5 % more than the bound.
    assert!(price * 1000 <= bound * 1030, "{bound} {price}");
}

/// The most that pods on a machine are worth, by looking at every filling.
fn most_by_counting(problem: &Problem, room: &Load, choices: &[(u32, u32)], values: &[f64]) -> f64 {
    let Some(((item, most), rest)) = choices.split_first() else {
        return 0.0;
    };
    let request = &problem.items[*item as usize].request;
    let mut best: f64 = 0.0;
    let mut left = *room;
    for count in 0..=*most {
        let after = most_by_counting(problem, &left, rest, values);
        best = best.max(after + values[*item as usize] * f64::from(count));
        add(&mut left, request, -1);
        if left.iter().any(|left| *left < 0) {
            break;
        }
    }
    best
}

/// What a machine holds at most is what looking at every filling says, and no filling is worth more than one with fractions of pods.
#[test]
fn knapsacks_are_what_every_filling_says() {
    let mut dice = Dice(11);
    let mut knapsack = Knapsack::default();
    let mut with_fractions = 0;
    for round in 0..400 {
        let problem = random(&mut dice, 5, 4);
        let values: Vec<f64> = (0..5).map(|_| dice.below(100) as f64).collect();
        for offer in &problem.offers {
            let most = |item: usize| problem.most_on(offer, item).min(problem.items[item].demand);
            let choices = problem.choices_on(offer);
            let exact = most_by_counting(&problem, &offer.room, &choices, &values);
            let enough = exact * dice.below(3) as f64 / 2.0;
            let found = knapsack.most(&problem, offer, (&choices, &values), enough, 100_000);
            assert!(found.is_exact, "round {round}");
            assert!(
                (found.upper - exact.max(enough)).abs() < 1e-6,
                "round {round}: {found:?} {exact}"
            );
            let held = problem.load_of(&found.pods);
            assert!(within(&held, &offer.room), "round {round}");
            let worth: f64 = found
                .pods
                .iter()
                .map(|(item, count)| values[*item] * f64::from(*count))
                .sum();
            assert!(
                found.pods.is_empty() || (worth - exact).abs() < 1e-6,
                "round {round}"
            );
            let in_parts = knapsack.most(&problem, offer, (&choices, &values), 0.0, 0);
            assert!(
                in_parts.upper > exact - 1e-6,
                "round {round}: {in_parts:?} {exact}"
            );
            let mut used = [0.0; DIMENSIONS];
            let mut worth = 0.0;
            for (item, part) in &knapsack.parts {
                assert!(
                    *part <= f64::from(most(*item as usize)) + 1e-9,
                    "round {round}"
                );
                worth += values[*item as usize] * part;
                let request = problem.items[*item as usize].request;
                for (used, request) in used.iter_mut().zip(request) {
                    *used += request as f64 * part;
                }
                with_fractions += u32::from(part.fract() > 1e-6);
            }
            assert!(
                (worth - in_parts.upper).abs() < 1e-6,
                "round {round}: {worth} {in_parts:?}"
            );
            for (used, room) in used.iter().zip(offer.room) {
                assert!(*used <= room as f64 + 1e-6, "round {round}");
            }
        }
    }
    assert!(with_fractions > 100, "{with_fractions} fractions");
}
