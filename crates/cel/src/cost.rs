//! Estimates the highest cost of an expression before it runs, which kube-apiserver compares with its limits when a rule is created.
//!
//! Each step has a price; where it depends on the length of a list or string, the [`Shape`] of the variables gives the longest length.
//! Only the upper bound is computed. The prices decide which definitions are accepted, so they must equal kube-apiserver's. Sources:
//! cel-go's checker/cost.go and k8s.io/apiserver/pkg/cel/library/cost.go.

use std::collections::BTreeMap;

mod prices;

use self::prices::{of_function, of_lists, of_operator};
use super::{
    check::{Checker, Environment},
    expr::{Expr, Fold, FoldKind, Literal, Node, qualified, root},
    functions::is_type_name,
    types::Type,
};

/// The price of reading one character or byte.
const TRAVERSAL: f64 = 0.1;
/// The price of matching one character of a regular expression.
const REGEX: f64 = 0.25;
/// The price of creating a list; maps and messages cost more (cel-go: common/cost.go).
const LIST: u64 = 10;
const MAP: u64 = 30;
const MESSAGE: u64 = 40;

/// The largest size of a type's values.
#[derive(Debug, Default)]
pub struct Shape {
    /// The most items, entries, characters or bytes; 0 for values without a size.
    pub most: u64,
    /// The least bytes of the JSON text.
    pub least_bytes: u64,
    /// The shapes of the known fields.
    pub fields: BTreeMap<String, Shape>,
    /// The shape of all other fields, if there may be any.
    pub others: Option<Box<Shape>>,
    /// The shape of a map's keys.
    pub keys: Option<Box<Shape>>,
    /// The shape of a list's items or a map's values.
    pub items: Option<Box<Shape>>,
}

/// A range of sizes.
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

    /// Returns the price of traversing all elements.
    fn priced(self, each: f64) -> u64 {
        scaled(self.max, each)
    }
}

fn scaled(count: u64, each: f64) -> u64 {
    // Rounded up at every step, as in cel-go.
    (count as f64 * each).ceil() as u64
}

/// The estimate for a part of an expression.
struct Part<'s> {
    cost: u64,
    kind: Type,
    /// The shape of the value, if it comes from a variable.
    place: Option<&'s Shape>,
    size: Option<Size>,
    /// The value, if it is an integer literal; 0 for negative ones.
    whole: Option<u64>,
}

impl Part<'_> {
    fn size(&self) -> Size {
        self.size.unwrap_or(Size::UNKNOWN)
    }
}

/// The price of a call without its arguments, and the size of its result.
type Price = (u64, Option<Size>);

/// Returns the highest cost of a checked expression; `root` is the shape of its variables.
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
    /// For each variable of the enclosing macros its shape, or its size if it has no shape. The checker has the types.
    places: Vec<(String, Option<&'s Shape>, Option<Size>)>,
    root: &'s Shape,
}

impl<'s> Coster<'s, '_> {
    fn part(&mut self, expression: &Expr) -> Part<'s> {
        let kind = self.checker.of(expression);
        let (cost, place, size) = self.price(expression);
        // A size that follows from the expression takes precedence over the shape's, and that over the type's.
        let size = size
            .or_else(|| place.map(|place| Size::at_most(place.most)))
            .or_else(|| is_scalar(&kind).then(|| Size::exactly(1)));
        let whole = match expression.node {
            Node::Literal(Literal::Int(number)) => Some(u64::try_from(number).unwrap_or(0)),
            _ => None,
        };
        Part {
            cost,
            kind,
            place,
            size,
            whole,
        }
    }

    fn price(&mut self, expression: &Expr) -> (u64, Option<&'s Shape>, Option<Size>) {
        match &expression.node {
            Node::Literal(literal) => (0, None, Some(Size::exactly(length(literal)))),
            Node::Name(name) => {
                let mut locals = self.places.iter().rev();
                match locals.find(|(local, ..)| local == name) {
                    None => (1, Some(self.root), None),
                    Some((_, Some(place), _)) => (1, Some(*place), None),
                    Some((_, None, size)) => (1, None, *size),
                }
            }
            // The checker treats the chain as one name, which has the root's shape like any other name.
            Node::Select { .. } if self.is_type(expression) => (1, Some(self.root), None),
            Node::Select {
                operand,
                field,
                test,
            } => {
                let operand = self.part(operand);
                // cel-go charges nothing for `has` itself.
                if *test {
                    return (operand.cost, None, None);
                }
                // cel-go charges a selection only if the operand is known to be a map or an object.
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
                let bound = (variable, value.kind, value.place);
                let body = self.inside_with(&[bound], value.size, body);
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

    /// Returns whether a chain of selections spells a type name such as `google.protobuf.Duration`.
    fn is_type(&self, chain: &Expr) -> bool {
        let is_local = |root: &str| self.places.iter().any(|(local, ..)| local == root);
        let is_free = root(chain).is_some_and(|root| !is_local(root));
        is_free && qualified(chain).is_some_and(|name| is_type_name(&name))
    }

    fn inside(
        &mut self,
        variables: &[(&String, Type, Option<&'s Shape>)],
        body: &Expr,
    ) -> Part<'s> {
        self.inside_with(variables, None, body)
    }

    /// Estimates `body` with more variables in scope; `size` is the size of those without a shape.
    fn inside_with(
        &mut self,
        variables: &[(&String, Type, Option<&'s Shape>)],
        size: Option<Size>,
        body: &Expr,
    ) -> Part<'s> {
        let (places, locals) = (self.places.len(), self.checker.locals.len());
        for (name, kind, place) in variables {
            self.places.push(((*name).clone(), *place, size));
            self.checker.locals.push(((*name).clone(), kind.clone()));
        }
        let part = self.part(body);
        self.places.truncate(places);
        self.checker.locals.truncate(locals);
        part
    }

    /// Estimates a macro as the loop that it expands to: an initial value, a condition and a step for each item, and the result.
    fn fold(&mut self, fold: &Fold) -> (u64, Option<&'s Shape>, Option<Size>) {
        let range = self.part(&fold.range);
        let below = |pick: fn(&Shape) -> Option<&Shape>| match range.place {
            Some(place) => pick(place),
            // cel-go looks up a range without a shape at the root.
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
        // Multiplied by the most items that the range may have; without a known size that is the largest number,
        // which refuses the rule.
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
        // The apparent target may be the first part of the function's name.
        let namespaced = target.and_then(|target| self.checker.namespaced(target, function));
        let target = match &namespaced {
            Some(_) => None,
            None => target.map(|target| self.part(target)),
        };
        let function = namespaced.as_deref().unwrap_or(function);
        let arguments: Vec<Part<'s>> = arguments.iter().map(|part| self.part(part)).collect();
        let parts = target.iter().chain(&arguments);
        let all = parts.fold(0, |cost: u64, part| cost.saturating_add(part.cost));
        // Only one branch runs, so the dearer one counts.
        if let ("_?_:_", [condition, yes, no]) = (function, arguments.as_slice()) {
            let cost = condition.cost.saturating_add(yes.cost.max(no.cost));
            return (cost, None, Some(yes.size().or(no.size())));
        }
        let (price, size) = of_function(function, target.as_ref(), &arguments)
            .or_else(|| of_lists(function, target.as_ref(), &arguments))
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
