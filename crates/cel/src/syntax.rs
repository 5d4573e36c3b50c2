//! Parses expressions into trees whose nodes know their positions.
//!
//! The grammar of the cel crate runs first, because its syntax errors have cel-go's messages. Positions are those that cel-go reports: of
//! an operator, of the dot before a field, of the bracket that opens a call's arguments.

mod words;

use super::{
    Issues, Problem, RESERVED,
    expr::{Expr, Field, Literal, Node, qualified},
    lexer::{Token, tokens},
    macros::method,
};

/// The most levels to which a grammar rule may nest, including chains of operators and selections, and to which the nodes of the finished
/// tree may nest (cel-go: maxRecursionDepth, the default of parser.NewParser, which Kubernetes keeps).
const MAX_DEPTH: usize = 250;
/// The most characters of an expression (cel-go: expressionSizeCodePointLimit, also the default).
const MAX_LENGTH: usize = 100_000;
/// The stack that parsing may need; the cel crate's grammar uses much of it.
const STACK_BYTES: usize = 64 << 20;

/// Parses an expression and returns it with its depth; `binds` makes `cel.bind` available.
pub(crate) fn parse(source: &str, binds: bool) -> Result<(Expr, usize), Issues> {
    let length = source.chars().count();
    if length > MAX_LENGTH {
        return Err(Issues::of_all(format!(
            "expression code point size exceeds limit: size: {length}, limit {MAX_LENGTH}"
        )));
    }
    stacker::grow(STACK_BYTES, || parse_within(source, binds))
}

fn parse_within(source: &str, binds: bool) -> Result<(Expr, usize), Issues> {
    let mut plain = None;
    let parsed = tokens(source)
        .map_err(|problem| vec![problem])
        .and_then(|tokens| {
            plain = Some(tokens.plain);
            let mut parser = Parser {
                tokens: tokens.all,
                problems: tokens.unread,
                binds,
                next: 0,
                depths: [0; 5],
                deepest: 0,
            };
            let expression = parser.expression().map_err(|problem| vec![problem])?;
            match parser.peek() {
                Token::End if parser.problems.is_empty() => Ok((expression, parser.deepest)),
                Token::End => Err(parser.problems),
                _ => Err(vec![parser.wrong("Syntax error: mismatched input")]),
            }
        });
    // The cel crate's grammar cannot handle deeper expressions.
    let is_too_deep =
        |problems: &Vec<Problem>| problems.iter().any(|problem| problem.message == too_deep());
    if parsed.as_ref().is_err_and(is_too_deep) {
        return Err(Issues::of_all(too_deep()));
    }
    // This grammar's errors come first, because they have cel-go's messages and the parser's own do not.
    words::accept(source, plain.as_deref().unwrap_or(source), MAX_DEPTH as u16)?;
    let (expression, deepest) = parsed.map_err(|problems| Issues::new(source, problems))?;
    if expression.depth() > MAX_DEPTH {
        return Err(Issues::of_all("max recursion depth exceeded".to_owned()));
    }
    Ok((expression, deepest))
}

fn too_deep() -> String {
    format!("expression recursion limit exceeded: {MAX_DEPTH}")
}

/// The recursive rules of the grammar.
#[derive(Clone, Copy)]
enum Rule {
    Expression,
    Relation,
    Sum,
    Product,
    Member,
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    /// Errors that do not stop the parser.
    problems: Vec<Problem>,
    /// Whether `cel.bind` is available.
    binds: bool,
    next: usize,
    /// The current nesting of each [`Rule`].
    depths: [usize; 5],
    /// The largest sum of `depths` so far.
    deepest: usize,
}

/// Maps a token to the function of its operator, for the operators of one precedence.
type Operator = fn(&Token) -> Option<&'static str>;

/// The binary operators by rising precedence, with their grammar rules.
const BINARY: [(Operator, Rule); 3] = [
    (
        |token| match token {
            Token::Mark("==") => Some("_==_"),
            Token::Mark("!=") => Some("_!=_"),
            Token::Mark("<") => Some("_<_"),
            Token::Mark("<=") => Some("_<=_"),
            Token::Mark(">") => Some("_>_"),
            Token::Mark(">=") => Some("_>=_"),
            Token::Name(name) if name == "in" => Some("@in"),
            _ => None,
        },
        Rule::Relation,
    ),
    (
        |token| match token {
            Token::Mark("+") => Some("_+_"),
            Token::Mark("-") => Some("_-_"),
            _ => None,
        },
        Rule::Sum,
    ),
    (
        |token| match token {
            Token::Mark("*") => Some("_*_"),
            Token::Mark("/") => Some("_/_"),
            Token::Mark("%") => Some("_%_"),
            _ => None,
        },
        Rule::Product,
    ),
];

pub(super) type Parsed<T = Expr> = Result<T, Problem>;

impl Parser {
    /// Enters a rule one level deeper.
    fn deeper(&mut self, rule: Rule) -> Parsed<()> {
        let depth = &mut self.depths[rule as usize];
        *depth += 1;
        if *depth > MAX_DEPTH {
            return Err(self.wrong(&too_deep()));
        }
        self.deepest = self.deepest.max(self.depths.iter().sum());
        Ok(())
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.next].1
    }

    fn at(&self) -> usize {
        self.tokens[self.next].0
    }

    fn wrong(&self, message: &str) -> Problem {
        Problem {
            at: self.at(),
            message: message.to_owned(),
        }
    }

    fn advance(&mut self) -> Token {
        let token = self.tokens[self.next].1.clone();
        if token != Token::End {
            self.next += 1;
        }
        token
    }

    /// Consumes a mark if it is next, and returns its position.
    fn mark(&mut self, wanted: &str) -> Option<usize> {
        let at = self.at();
        let found = matches!(self.peek(), Token::Mark(mark) if *mark == wanted);
        if found {
            self.next += 1;
        }
        found.then_some(at)
    }

    fn expect(&mut self, wanted: &str) -> Parsed<usize> {
        match self.mark(wanted) {
            Some(at) => Ok(at),
            None => Err(self.wrong(&format!("Syntax error: missing '{wanted}'"))),
        }
    }

    fn name(&mut self) -> Parsed<String> {
        match self.advance() {
            Token::Name(name) => Ok(name),
            _ => Err(self.wrong("Syntax error: missing IDENTIFIER")),
        }
    }

    fn expression(&mut self) -> Parsed {
        self.deeper(Rule::Expression)?;
        let condition = self.logic("||", "_||_")?;
        let whole = match self.mark("?") {
            None => condition,
            Some(at) => {
                // As in cel-go's grammar, a ternary in this place needs parentheses, but after the colon it does not.
                let then = self.logic("||", "_||_")?;
                self.expect(":")?;
                let otherwise = self.expression()?;
                call(at, "_?_:_", vec![condition, then, otherwise])
            }
        };
        self.depths[Rule::Expression as usize] -= 1;
        Ok(whole)
    }

    /// Parses a chain of `||` or `&&` into a balanced tree.
    fn logic(&mut self, mark: &str, function: &str) -> Parsed {
        let mut terms = Vec::new();
        let mut places = Vec::new();
        loop {
            terms.push(Some(if mark == "||" {
                self.logic("&&", "_&&_")?
            } else {
                self.binary(0)?
            }));
            match self.mark(mark) {
                Some(at) => places.push(at),
                None => return Ok(balanced(function, &mut terms, &places, 0, places.len())),
            }
        }
    }

    /// Parses a chain of operators whose precedence is at least `level`.
    fn binary(&mut self, level: usize) -> Parsed {
        let Some((operator, rule)) = BINARY.get(level) else {
            return self.unary();
        };
        let before = self.depths[*rule as usize];
        self.deeper(*rule)?;
        let mut left = self.binary(level + 1)?;
        while let Some(function) = operator(self.peek()) {
            let at = self.at();
            self.next += 1;
            // In cel-go's grammar, which is left-recursive, each operator of a chain is one level deeper.
            self.deeper(*rule)?;
            let right = self.binary(level + 1)?;
            left = call(at, function, vec![left, right]);
        }
        self.depths[*rule as usize] = before;
        Ok(left)
    }

    /// Parses `!` and `-`; pairs of the same operator cancel out.
    fn unary(&mut self) -> Parsed {
        let at = self.at();
        let (mark, function) = match self.peek() {
            Token::Mark("!") => ("!", "!_"),
            Token::Mark("-") => ("-", "-_"),
            _ => return self.member(),
        };
        let mut count = 0;
        while self.mark(mark).is_some() {
            count += 1;
        }
        // A minus before a number is part of the literal, because the lowest int has no positive counterpart.
        if mark == "-" && count == 1 {
            let literal = match self.peek() {
                Token::Int(number) => Some(Literal::Int(-number)),
                Token::LowestInt => Some(Literal::Int(i64::MIN)),
                Token::Double(number) => Some(Literal::Double(-number)),
                _ => None,
            };
            if let Some(literal) = literal {
                self.next += 1;
                let node = Node::Literal(literal);
                return self.selections(Expr { at, node });
            }
        }
        let operand = self.member()?;
        Ok(if count % 2 == 0 {
            operand
        } else {
            call(at, function, vec![operand])
        })
    }

    fn member(&mut self) -> Parsed {
        let primary = self.primary()?;
        self.selections(primary)
    }

    fn selections(&mut self, mut operand: Expr) -> Parsed {
        let before = self.depths[Rule::Member as usize];
        loop {
            // This rule of cel-go's grammar is left-recursive too, so each selection is one level deeper.
            self.deeper(Rule::Member)?;
            if let Some(at) = self.mark(".") {
                if self.mark("?").is_some() {
                    let field = self.name()?;
                    let operand_before = Box::new(operand);
                    operand = Expr {
                        at,
                        node: Node::OptionalSelect {
                            operand: operand_before,
                            field,
                        },
                    };
                    continue;
                }
                let name = self.name()?;
                operand = match self.mark("(") {
                    Some(at) => {
                        let arguments = self.arguments(")")?;
                        method(at, operand, name, arguments, self.binds)?
                    }
                    None => Expr {
                        at,
                        node: Node::Select {
                            operand: Box::new(operand),
                            field: name,
                            test: false,
                        },
                    },
                };
            } else if let Some(at) = self.mark("[") {
                let function = match self.mark("?") {
                    Some(_) => "_[?_]",
                    None => "_[_]",
                };
                let index = self.expression()?;
                self.expect("]")?;
                operand = call(at, function, vec![operand, index]);
            } else if let Some(name) = self.name_of_message(&operand) {
                operand = self.message(name)?;
            } else {
                // The chain is complete, so its depth does not count for what follows.
                self.depths[Rule::Member as usize] = before;
                return Ok(operand);
            }
        }
    }

    /// Returns the message type before a brace.
    fn name_of_message(&self, operand: &Expr) -> Option<String> {
        match self.peek() {
            Token::Mark("{") => qualified(operand),
            _ => None,
        }
    }

    fn message(&mut self, name: String) -> Parsed {
        let at = self.expect("{")?;
        let mut fields = Vec::new();
        while self.mark("}").is_none() {
            let optional = self.mark("?").is_some();
            let name = self.name()?;
            fields.push(Field {
                at: self.expect(":")?,
                name,
                optional,
                value: self.expression()?,
            });
            if self.mark(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        let node = Node::Message { name, fields };
        Ok(Expr { at, node })
    }

    fn arguments(&mut self, end: &str) -> Parsed<Vec<Expr>> {
        let mut arguments = Vec::new();
        while self.mark(end).is_none() {
            arguments.push(self.expression()?);
            if self.mark(",").is_none() {
                self.expect(end)?;
                break;
            }
        }
        Ok(arguments)
    }

    fn primary(&mut self) -> Parsed {
        let at = self.at();
        let literal = |literal| {
            Ok(Expr {
                at,
                node: Node::Literal(literal),
            })
        };
        match self.advance() {
            Token::Int(number) => literal(Literal::Int(number)),
            Token::Uint(number) => literal(Literal::Uint(number)),
            Token::Double(number) => literal(Literal::Double(number)),
            Token::Text(text) => literal(Literal::Text(text)),
            Token::Bytes(bytes) => literal(Literal::Bytes(bytes)),
            Token::LowestInt => Err(Problem {
                at,
                message: "invalid int literal".to_owned(),
            }),
            Token::Name(name) => match name.as_str() {
                "true" => literal(Literal::Bool(true)),
                "false" => literal(Literal::Bool(false)),
                "null" => literal(Literal::Null),
                _ => self.named(at, name),
            },
            Token::Mark(".") => {
                let name = self.name()?;
                self.named(at, name)
            }
            Token::Mark("(") => {
                let inner = self.expression()?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Mark("[") => self.list(at),
            Token::Mark("{") => self.map(at),
            _ => Err(Problem {
                at,
                message: "Syntax error: mismatched input".to_owned(),
            }),
        }
    }

    fn named(&mut self, at: usize, name: String) -> Parsed {
        if RESERVED.contains(&name.as_str()) {
            let message = format!("reserved identifier: {name}");
            // cel-go goes on after this error and may report others.
            self.problems.push(Problem { at, message });
            let known = self.problems.len();
            if self.mark("(").is_some() {
                self.arguments(")")?;
                // The arguments of such a function are not checked.
                self.problems.truncate(known);
            }
            let node = Node::Name(name);
            return Ok(Expr { at, node });
        }
        let Some(open) = self.mark("(") else {
            return Ok(Expr {
                at,
                node: Node::Name(name),
            });
        };
        let mut arguments = self.arguments(")")?;
        if name == "has" && arguments.len() == 1 {
            let argument = arguments.remove(0);
            return match argument.node {
                Node::Select { operand, field, .. } => Ok(Expr {
                    at: open,
                    node: Node::Select {
                        operand,
                        field,
                        test: true,
                    },
                }),
                _ => Err(Problem {
                    at: argument.at,
                    message: "invalid argument to has() macro".to_owned(),
                }),
            };
        }
        Ok(call(open, &name, arguments))
    }

    fn list(&mut self, at: usize) -> Parsed {
        let mut items = Vec::new();
        while self.mark("]").is_none() {
            let optional = self.mark("?").is_some();
            items.push((optional, self.expression()?));
            if self.mark(",").is_none() {
                self.expect("]")?;
                break;
            }
        }
        Ok(Expr {
            at,
            node: Node::List(items),
        })
    }

    fn map(&mut self, at: usize) -> Parsed {
        let mut entries = Vec::new();
        while self.mark("}").is_none() {
            let optional = self.mark("?").is_some();
            let key = self.expression()?;
            self.expect(":")?;
            entries.push((optional, key, self.expression()?));
            if self.mark(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        Ok(Expr {
            at,
            node: Node::Map(entries),
        })
    }
}

fn call(at: usize, function: &str, arguments: Vec<Expr>) -> Expr {
    Expr {
        at,
        node: Node::Call {
            function: function.to_owned(),
            target: None,
            arguments,
        },
    }
}

/// Joins terms like cel-go into a balanced tree, so that a long chain does not become a deep tree.
fn balanced(
    function: &str,
    terms: &mut [Option<Expr>],
    places: &[usize],
    low: usize,
    high: usize,
) -> Expr {
    if low == high {
        return terms[low].take().expect("each term is in the tree once");
    }
    // The operator at `middle` has the terms up to `middle` on its left.
    let middle = (low + high) / 2;
    let left = balanced(function, terms, places, low, middle);
    let right = balanced(function, terms, places, middle + 1, high);
    call(places[middle], function, vec![left, right])
}
