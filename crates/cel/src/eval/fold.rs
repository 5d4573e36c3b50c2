//! Evaluates macros over lists and maps.

use std::sync::Arc;

use kube_cel::cel::Value;

use super::{Evaluated, Failure, Run, count, failed, no_overload, scope::Scope};
use crate::{
    conversions::as_text,
    error::EvalError,
    expr::{Fold, FoldKind},
    keyed::plain,
    maps::{Entries, as_map},
    values::go_type,
};

impl Run<'_> {
    pub(super) fn fold(&mut self, fold: &Fold, scope: &Scope<'_>) -> Evaluated {
        let range = self.value(&fold.range, scope)?;
        let range = plain(&range);
        let mut collected = Collected::default();
        match range {
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    // With one variable that is the item itself; with two the first is the index.
                    let first = fold.second.is_none().then_some(item);
                    if self.step(fold, scope, &mut collected, (&count(index), item), first)? {
                        break;
                    }
                }
            }
            other if let Some(map) = as_map(other) => {
                // Listing a map's entries costs a step for each ten.
                self.budget.take(map.len() as u64 / 10)?;
                for (key, value) in map.entries() {
                    if self.step(fold, scope, &mut collected, (&key, value), None)? {
                        break;
                    }
                }
            }
            other => {
                let found = go_type(other).to_owned();
                return failed(match fold.second {
                    None => EvalError::NotIterable(found),
                    Some(_) => EvalError::NotARange(found),
                });
            }
        }
        collected.result(fold.kind)
    }

    /// Evaluates one entry; the first variable is the index or key unless `first` is given. Returns whether the result is known already.
    fn step(
        &mut self,
        fold: &Fold,
        scope: &Scope<'_>,
        collected: &mut Collected,
        (at, item): (&Value, &Value),
        first: Option<&Value>,
    ) -> Evaluated<bool> {
        let first = first.unwrap_or(at);
        let outer = scope.with(&fold.variable, first);
        let inner = match &fold.second {
            Some(second) => outer.with(second, item),
            None => outer.same(),
        };
        if let Some(filter) = &fold.filter
            && !collected.chosen(self.truth(filter, &inner))?
        {
            return Ok(false);
        }
        collected.take(self, fold, &inner, at, first)
    }
}

/// The result of a macro so far.
#[derive(Default)]
struct Collected {
    list: Vec<Value>,
    map: Entries,
    holds: u64,
    decided: bool,
    failure: Option<EvalError>,
}

impl Collected {
    /// Evaluates one more item. Returns whether the result is known already.
    fn take(
        &mut self,
        run: &mut Run<'_>,
        fold: &Fold,
        scope: &Scope<'_>,
        at: &Value,
        item: &Value,
    ) -> Evaluated<bool> {
        match fold.kind {
            // A decisive item ends the loop, and overrides the errors of earlier ones.
            FoldKind::All | FoldKind::Exists => match run.truth(&fold.body, scope) {
                Ok(truth) => {
                    self.decided = truth == (fold.kind == FoldKind::Exists);
                    return Ok(self.decided);
                }
                Err(Failure::Error(why)) => {
                    self.failure.get_or_insert(why);
                }
                Err(over) => return Err(over),
            },
            FoldKind::ExistsOne => {
                self.holds += u64::from(self.chosen(run.truth(&fold.body, scope))?);
            }
            FoldKind::Filter => {
                if self.chosen(run.truth(&fold.body, scope))? {
                    self.list.push(item.clone());
                }
            }
            FoldKind::Map => {
                let value = run.value(&fold.body, scope);
                if let Some(value) = self.made(value)? {
                    self.list.push(value);
                }
            }
            FoldKind::TransformMap => {
                let value = run.value(&fold.body, scope);
                if let Some(value) = self.made(value)? {
                    self.insert(at.clone(), value)?;
                }
            }
            FoldKind::TransformEntries => {
                let body = run.value(&fold.body, scope);
                let Some(body) = self.made(body)? else {
                    return Ok(false);
                };
                let Some(entries) = as_map(&body) else {
                    return no_overload();
                };
                run.budget.take(entries.len() as u64 / 10)?;
                for (key, value) in entries.entries() {
                    self.insert(key, value.clone())?;
                }
            }
        }
        Ok(false)
    }

    /// Returns whether an item takes part. Of several errors in conditions the last one is reported, unless one ends the evaluation.
    fn chosen(&mut self, truth: Evaluated<bool>) -> Evaluated<bool> {
        match truth {
            Err(Failure::Error(why)) => {
                self.failure = Some(why);
                Ok(false)
            }
            other => other,
        }
    }

    /// Returns an item's value. The first error is kept, unless a later condition fails.
    fn made(&mut self, value: Evaluated) -> Evaluated<Option<Value>> {
        match value {
            Err(Failure::Error(why)) => {
                self.failure.get_or_insert(why);
                Ok(None)
            }
            // After an error the result is lost, so nothing more is collected; the loop goes on because a later error
            // in a condition would be the one reported.
            Ok(_) if self.failure.is_some() => Ok(None),
            other => other.map(Some),
        }
    }

    fn insert(&mut self, key: Value, value: Value) -> Evaluated<()> {
        let shown = as_text(&key).and_then(Result::ok).unwrap_or_default();
        // cel-go refuses a key that comes twice instead of keeping either value.
        if self.map.finds(&key) {
            return failed(EvalError::DuplicateKey(shown));
        }
        self.map.insert(key, value).map_err(Failure::Error)
    }

    fn result(self, kind: FoldKind) -> Evaluated {
        Ok(match kind {
            FoldKind::All | FoldKind::Exists => {
                let decisive = kind == FoldKind::Exists;
                match self.failure {
                    Some(why) if !self.decided => return failed(why),
                    _ => Value::Bool(self.decided == decisive),
                }
            }
            _ if let Some(why) = self.failure => return failed(why),
            FoldKind::ExistsOne => Value::Bool(self.holds == 1),
            FoldKind::Filter | FoldKind::Map => Value::List(Arc::new(self.list)),
            FoldKind::TransformMap | FoldKind::TransformEntries => self.map.finish(),
        })
    }
}
