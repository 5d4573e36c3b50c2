//! What an expression may cost at most, before it ever runs: what kube-apiserver holds against its limits when a rule is written.
//!
//! Every step has a price; where a price depends on how long a list or a text is, the [`Shape`] of the variables says how long it can be. Only
//! the worst case is told. The prices are protocol (they decide which definitions are accepted). Sources: cel-go's checker/cost.go and
//! k8s.io/apiserver/pkg/cel/library/cost.go.

use std::collections::BTreeMap;

use super::{
    check::{Checker, Environment},
    expr::{Expr, Fold, FoldKind, Literal, Node, qualified, root},
    functions::is_type_name,
    types::Type,
};

/// Reading a text or bytes, for each character.
const TRAVERSAL: f64 = 0.1;
/// Matching a regular expression, for each of its characters.
const REGEX: f64 = 0.25;
const LIST: u64 = 10;
const MAP: u64 = 30;
const MESSAGE: u64 = 40;

/// How big the values of a type can be.
#[derive(Debug, Default)]
pub(crate) struct Shape {
    /// Items, entries, characters or bytes at most; 0 for what has no size.
    pub(crate) most: u64,
    /// Bytes of JSON at least.
    pub(crate) least_bytes: u64,
    pub(crate) fields: BTreeMap<String, Shape>,
    /// Every other field, if there may be more.
    pub(crate) others: Option<Box<Shape>>,
    /// The keys of a map.
    pub(crate) keys: Option<Box<Shape>>,
    /// The items of a list, the values of a map.
    pub(crate) items: Option<Box<Shape>>,
}

/// Between how many and how many.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Size {
    min: u64,
    max: u64,
}

impl Size {
    const UNKNOWN: Size = Size {
        min: 0,
        max: u64::MAX,
    };

    fn exactly(count: usize) -> Self {
        let count = count as u64;
        Size {
            min: count,
            max: count,
        }
    }

    fn at_most(max: u64) -> Self {
        Size { min: 0, max }
    }

    fn plus(self, other: Size) -> Self {
        Size {
            min: self.min.saturating_add(other.min),
            max: self.max.saturating_add(other.max),
        }
    }

    fn times(self, other: Size) -> Self {
        Size {
            min: self.min.saturating_mul(other.min),
            max: self.max.saturating_mul(other.max),
        }
    }

    fn or(self, other: Size) -> Self {
        Size {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    /// The price of going through all of it.
    fn priced(self, each: f64) -> u64 {
        scaled(self.max, each)
    }
}

fn scaled(count: u64, each: f64) -> u64 {
    (count as f64 * each).ceil() as u64
}

/// What is known of a part of an expression.
struct Part<'s> {
    cost: u64,
    kind: Type,
    /// Where its value comes from.
    place: Option<&'s Shape>,
    size: Option<Size>,
}

impl Part<'_> {
    fn size(&self) -> Size {
        self.size.unwrap_or(Size::UNKNOWN)
    }
}

/// The price of a call without that of its arguments, and the size of what it results in.
type Price = (u64, Option<Size>);

/// The most that an expression which has been checked can cost; `root` is the shape of its variables.
pub(super) fn most(expression: &Expr, environment: &Environment, root: &Shape) -> u64 {
    let mut coster = Coster {
        checker: Checker::new(environment),
        places: Vec::new(),
        root,
    };
    coster.part(expression).cost
}

struct Coster<'s, 'e> {
    checker: Checker<'e>,
    /// Where the values of the macros' variables come from, as the checker has their types.
    places: Vec<(String, Option<&'s Shape>)>,
    root: &'s Shape,
}

impl<'s> Coster<'s, '_> {
    fn part(&mut self, expression: &Expr) -> Part<'s> {
        let kind = self.checker.of(expression);
        let (cost, place, size) = self.price(expression);
        // A size that follows from the expression comes before that of the place, which comes before that of the type.
        let size = size
            .or_else(|| place.map(|place| Size::at_most(place.most)))
            .or_else(|| is_scalar(&kind).then(|| Size::exactly(1)));
        Part {
            cost,
            kind,
            place,
            size,
        }
    }

    fn price(&mut self, expression: &Expr) -> (u64, Option<&'s Shape>, Option<Size>) {
        match &expression.node {
            Node::Literal(literal) => (0, None, Some(Size::exactly(length(literal)))),
            Node::Name(name) => {
                let mut locals = self.places.iter().rev();
                let local = locals.find(|(local, _)| local == name);
                (1, local.map_or(Some(self.root), |(_, place)| *place), None)
            }
            // The checker makes one name of it, which has the root's place as any other.
            Node::Select { .. } if self.is_type(expression) => (1, Some(self.root), None),
            Node::Select {
                operand,
                field,
                test,
            } => {
                let operand = self.part(operand);
                if *test {
                    return (operand.cost, None, None);
                }
                let selects = matches!(operand.kind, Type::Map(..) | Type::Object(_));
                let place = operand.place.and_then(|place| {
                    let known = place.fields.get(field);
                    known.or(place.others.as_deref())
                });
                (operand.cost + u64::from(selects), place, None)
            }
            Node::OptionalSelect { operand, .. } => {
                (self.part(operand).cost.saturating_add(1), None, None)
            }
            Node::Call {
                function,
                target,
                arguments,
            } => self.call(function, target.as_deref(), arguments),
            Node::List(items) => {
                let items_cost = items.iter().map(|(_, item)| self.part(item).cost);
                let cost = items_cost.fold(LIST, u64::saturating_add);
                (cost, None, Some(Size::exactly(items.len())))
            }
            Node::Map(entries) => {
                let cost = entries.iter().fold(MAP, |cost, (_, key, value)| {
                    cost.saturating_add(self.part(key).cost)
                        .saturating_add(self.part(value).cost)
                });
                (cost, None, Some(Size::exactly(entries.len())))
            }
            Node::Message { fields, .. } => {
                let costs = fields.iter().map(|field| self.part(&field.value).cost);
                (costs.fold(MESSAGE, u64::saturating_add), None, None)
            }
            Node::Fold(fold) => self.fold(fold),
            Node::Bind {
                variable,
                value,
                body,
            } => {
                let value = self.part(value);
                let body = self.inside(&[(variable, value.kind, value.place)], body);
                let cost = LIST.saturating_add(value.cost).saturating_add(body.cost);
                (cost, None, body.size)
            }
            Node::OptionalMap {
                target,
                variable,
                body,
                flat,
            } => {
                // target.hasValue() ? optional.of(cel.bind(variable, target.value(), body)) : optional.none()
                let target = self.part(target);
                let inner = target.kind.unwrapped().0.clone();
                let body = self.inside(&[(variable, inner, None)], body);
                let once = target.cost.saturating_add(1);
                let wrapped = u64::from(!flat);
                let cost = once
                    .saturating_mul(2)
                    .saturating_add(LIST + wrapped)
                    .saturating_add(body.cost);
                (cost, None, None)
            }
        }
    }

    /// Whether a chain of selections spells a type, as `google.protobuf.Duration`.
    fn is_type(&self, chain: &Expr) -> bool {
        let is_local = |root: &str| self.places.iter().any(|(local, _)| local == root);
        let is_free = root(chain).is_some_and(|root| !is_local(root));
        is_free && qualified(chain).is_some_and(|name| is_type_name(&name))
    }

    fn inside(
        &mut self,
        variables: &[(&String, Type, Option<&'s Shape>)],
        body: &Expr,
    ) -> Part<'s> {
        let (places, locals) = (self.places.len(), self.checker.locals.len());
        for (name, kind, place) in variables {
            self.places.push(((*name).clone(), *place));
            self.checker.locals.push(((*name).clone(), kind.clone()));
        }
        let part = self.part(body);
        self.places.truncate(places);
        self.checker.locals.truncate(locals);
        part
    }

    /// A macro is the loop that it stands for: a first value, for each item a condition and a step, and the result.
    fn fold(&mut self, fold: &Fold) -> (u64, Option<&'s Shape>, Option<Size>) {
        let range = self.part(&fold.range);
        let below = |pick: fn(&Shape) -> Option<&Shape>| match range.place {
            Some(place) => pick(place),
            // cel-go looks what has no place up at the root.
            None => Some(self.root),
        };
        let keys = below(|place| place.keys.as_deref());
        let items = below(|place| place.items.as_deref());
        let (key, item, is_map) = match &range.kind {
            Type::List(item) => (Type::Int, (**item).clone(), false),
            Type::Map(key, value) => ((**key).clone(), (**value).clone(), true),
            _ => (Type::Dyn, Type::Dyn, true),
        };
        let variables = match &fold.second {
            Some(second) => {
                let key_place = if is_map { keys } else { None };
                vec![(&fold.variable, key, key_place), (second, item, items)]
            }
            None if is_map => vec![(&fold.variable, key, keys)],
            None => vec![(&fold.variable, item, items)],
        };
        let filter = fold.filter.as_ref();
        let filter = filter.map_or(0, |filter| self.inside(&variables, filter).cost);
        let body = self.inside(&variables, &fold.body).cost;
        let (first, condition, step, last) = match fold.kind {
            FoldKind::All => (0, 2, 1, 1),
            FoldKind::Exists => (0, 3, 1, 1),
            FoldKind::ExistsOne => (0, 0, 2, 2),
            FoldKind::Filter => (LIST, 0, 13, 1),
            FoldKind::Map => (LIST, 0, 12, 1),
            FoldKind::TransformMap => (MAP, 0, 3, 1),
            FoldKind::TransformEntries => (MAP, 0, 2, 1),
        };
        let each = filter.saturating_add(body).saturating_add(condition + step);
        let cost = range
            .size()
            .max
            .saturating_mul(each)
            .saturating_add(range.cost)
            .saturating_add(first + last);
        let size = match fold.kind {
            FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne => Size::exactly(1),
            _ => range.size(),
        };
        (cost, None, Some(size))
    }

    fn call(
        &mut self,
        function: &str,
        target: Option<&Expr>,
        arguments: &[Expr],
    ) -> (u64, Option<&'s Shape>, Option<Size>) {
        // What looks like a target may be the first part of the function's name.
        let namespaced = target.and_then(|target| self.checker.namespaced(target, function));
        let target = match &namespaced {
            Some(_) => None,
            None => target.map(|target| self.part(target)),
        };
        let function = namespaced.as_deref().unwrap_or(function);
        let arguments: Vec<Part<'s>> = arguments.iter().map(|part| self.part(part)).collect();
        let parts = target.iter().chain(&arguments);
        let all = parts.fold(0, |cost: u64, part| cost.saturating_add(part.cost));
        if let ("_?_:_", [condition, yes, no]) = (function, arguments.as_slice()) {
            let cost = condition.cost.saturating_add(yes.cost.max(no.cost));
            return (cost, None, Some(yes.size().or(no.size())));
        }
        let (price, size) = of_function(function, target.as_ref(), &arguments)
            .unwrap_or_else(|| of_operator(function, target.as_ref(), &arguments));
        let place = match (function, arguments.first()) {
            ("_[_]", Some(container)) => match container.place {
                Some(place) => place.items.as_deref(),
                None => Some(self.root),
            },
            _ => None,
        };
        let size = match function {
            "dyn" => arguments.first().and_then(|argument| argument.size),
            _ => size,
        };
        (all.saturating_add(price), place, size)
    }
}

/// Functions of Kubernetes' libraries and of the extensions.
fn of_function(function: &str, target: Option<&Part<'_>>, arguments: &[Part<'_>]) -> Option<Price> {
    let first = arguments.first().map(Part::size);
    Some(match (function, target) {
        ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some(target)) => {
            match &target.kind {
                Type::List(item) => {
                    let each = match **item {
                        Type::String | Type::Bytes => element(target).priced(TRAVERSAL),
                        _ => 0,
                    };
                    let cost = target.size().max.saturating_mul(each.saturating_add(1));
                    (cost, None)
                }
                _ => (target.size().priced(TRAVERSAL), None),
            }
        }
        ("url", None) => (first?.priced(TRAVERSAL), first),
        ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(target)) => {
            (target.size().priced(TRAVERSAL), Some(target.size()))
        }
        ("replace", Some(target)) if arguments.len() >= 2 => {
            let size = replaced(target.size(), first?, arguments[1].size());
            (target.size().priced(2.0 * TRAVERSAL), Some(size))
        }
        ("split", Some(target)) => (
            target.size().priced(2.0 * TRAVERSAL),
            Some(Size::at_most(target.size().max)),
        ),
        ("join", Some(target)) => {
            let items = target.size();
            let gaps = Size {
                min: items.min.saturating_sub(1),
                max: items.max.saturating_sub(1),
            };
            let mut size = items.times(element(target));
            if let Some(separator) = first {
                size = size.plus(separator.times(gaps));
            }
            (size.priced(TRAVERSAL), Some(size))
        }
        ("find" | "findAll", Some(target)) => {
            let text = target.size().plus(Size::exactly(1)).priced(TRAVERSAL);
            let cost = text.saturating_mul(first?.priced(REGEX));
            (cost, Some(Size::at_most(target.size().max)))
        }
        (
            "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver",
            None,
        ) => (first?.priced(TRAVERSAL), None),
        // The longest regular expression of a named format has 128 characters.
        ("validate", Some(_)) => (scaled(first?.priced(TRAVERSAL), 128.0 * REGEX), None),
        ("ip.isCanonical", None) => (first?.priced(2.0 * TRAVERSAL), None),
        ("containsIP" | "containsCIDR", Some(_)) => {
            // Two addresses of at most 16 bytes are compared; one network is cut to the other first.
            let compared = Size::exactly(32).priced(TRAVERSAL);
            let cut = match function {
                "containsCIDR" => Size::exactly(16).priced(TRAVERSAL) + 1,
                _ => 0,
            };
            let parsed = match arguments.first()?.kind {
                Type::String => first?.priced(TRAVERSAL),
                _ => 0,
            };
            (parsed.saturating_add(compared + cut), None)
        }
        _ => return None,
    })
}

/// The language itself; what is not named costs one step.
fn of_operator(function: &str, target: Option<&Part<'_>>, arguments: &[Part<'_>]) -> Price {
    const STEP: Price = (1, None);
    let may_be = |part: &Part<'_>, wanted: fn(&Type) -> bool| {
        wanted(&part.kind) || matches!(part.kind, Type::Dyn | Type::Open)
    };
    let text = |kind: &Type| matches!(kind, Type::String | Type::Bytes);
    match (function, target, arguments) {
        ("_&&_" | "_||_", ..) => (0, None),
        ("startsWith" | "endsWith", Some(_), [part]) => (part.size().priced(TRAVERSAL), None),
        ("bytes", None, [text]) if may_be(text, |kind| *kind == Type::String) => {
            let size = text.size();
            let most = size.max.saturating_mul(4);
            (size.priced(TRAVERSAL), Some(Size { max: most, ..size }))
        }
        ("string", None, [bytes]) if may_be(bytes, |kind| *kind == Type::Bytes) => {
            let size = bytes.size();
            let least = size.min / 4;
            (size.priced(TRAVERSAL), Some(Size { min: least, ..size }))
        }
        ("strings.quote", None, [text]) => {
            let size = text.size().plus(text.size()).plus(Size::exactly(2));
            (text.size().priced(TRAVERSAL), Some(size))
        }
        ("format", Some(target), _) => (target.size().priced(TRAVERSAL), None),
        ("@in", None, [_, list]) if may_be(list, |kind| matches!(kind, Type::List(_))) => {
            (list.size().max, None)
        }
        ("matches", Some(target), [pattern]) => {
            let text = target.size().plus(Size::exactly(1)).priced(TRAVERSAL);
            (text.saturating_mul(pattern.size().priced(REGEX)), None)
        }
        ("contains", Some(target), [part]) => {
            let text = target.size().priced(TRAVERSAL);
            (text.saturating_mul(part.size().priced(TRAVERSAL)), None)
        }
        ("_+_", None, [left, right]) => {
            let size = left.size().plus(right.size());
            if may_be(left, text) && may_be(right, text) {
                (size.priced(TRAVERSAL), Some(size))
            } else if matches!(
                (&left.kind, &right.kind),
                (Type::List(_), _) | (_, Type::List(_))
            ) {
                (1, Some(size))
            } else {
                STEP
            }
        }
        ("_==_", None, [left, _]) if matches!(left.kind, Type::Opaque(_)) => STEP,
        ("_==_" | "_!=_", None, [left, right]) => (compared(left, right), None),
        ("_<_" | "_<=_" | "_>_" | "_>=_", None, [left, right])
            if may_be(left, text) && may_be(right, text) =>
        {
            let either_dyn = [left, right]
                .iter()
                .any(|part| matches!(part.kind, Type::Dyn | Type::Open));
            (compared(left, right).max(u64::from(either_dyn)), None)
        }
        _ => STEP,
    }
}

/// The price of comparing as far as the shorter one goes.
fn compared(left: &Part<'_>, right: &Part<'_>) -> u64 {
    let shorter = left.size().max.min(right.size().max);
    scaled(shorter, TRAVERSAL)
}

/// The size of a list's items.
fn element(list: &Part<'_>) -> Size {
    let items = list.place.and_then(|place| place.items.as_deref());
    items.map_or(Size::UNKNOWN, |items| Size::at_most(items.most))
}

/// How long a text can be after replacing.
fn replaced(text: Size, old: Size, new: Size) -> Size {
    let quotient = |whole: u64, part: u64| (whole as f64 / part as f64).ceil() as u64;
    let (most, kept) = match old.min {
        0 => (text.max.saturating_add(1), text.max),
        _ if new.max <= old.min => (0, text.max),
        least => (quotient(text.max, least), 0),
    };
    let (least, kept_least) = match old.max {
        0 => (text.min.saturating_add(1), text.min),
        longest if longest <= new.min => (0, text.min),
        longest => (quotient(text.min, longest), 0),
    };
    Size {
        min: least.saturating_mul(new.min).saturating_add(kept_least),
        max: most.saturating_mul(new.max).saturating_add(kept),
    }
}

fn length(literal: &Literal) -> usize {
    match literal {
        Literal::Text(text) => text.chars().count(),
        Literal::Bytes(bytes) => bytes.len(),
        _ => 1,
    }
}

fn is_scalar(kind: &Type) -> bool {
    match kind {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => {
            true
        }
        Type::Optional(inner) => is_scalar(inner),
        _ => false,
    }
}
