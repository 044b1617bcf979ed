//! A cursor over the text with positions for errors.

use super::TextError;
use crate::types::{DType, TensorType};
use cranelift_entity::EntityRef;

pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut lexer = Lexer { text, at: 0 };
        lexer.skip_blank();
        lexer
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_blank(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with('#') {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn advance(&mut self, bytes: usize) {
        self.at += bytes;
        self.skip_blank();
    }

    pub(super) fn at_end(&self) -> bool {
        self.rest().is_empty()
    }

    /// The byte at which the cursor is, for an error that is found later: lines are counted
    /// where there is an error, or reading would take the square of the text's length.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// An error at the current position.
    pub(super) fn error(&self, message: impl Into<String>) -> TextError {
        self.error_at(self.at, message)
    }

    /// An error at a [`Lexer::position`].
    pub(super) fn error_at(&self, at: usize, message: impl Into<String>) -> TextError {
        let before = &self.text[..at];
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        TextError {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message: message.into(),
        }
    }

    fn expected<T>(&self, what: &str) -> Result<T, TextError> {
        let found: String =
            self.rest().chars().take_while(|c| !c.is_whitespace()).take(20).collect();
        let found = if found.is_empty() { "the end".into() } else { format!("`{found}`") };
        Err(self.error(format!("expected {what}, found {found}")))
    }

    fn word_len(&self) -> usize {
        let rest = self.rest();
        rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len())
    }

    pub(super) fn peek_word(&self, word: &str) -> bool {
        &self.rest()[..self.word_len()] == word
    }

    pub(super) fn word(&mut self) -> Result<&'a str, TextError> {
        let n = self.word_len();
        if n == 0 {
            return self.expected("a word");
        }
        let word = &self.rest()[..n];
        self.advance(n);
        Ok(word)
    }

    pub(super) fn accept_word(&mut self, word: &str) -> bool {
        let found = self.peek_word(word);
        if found {
            self.advance(word.len());
        }
        found
    }

    pub(super) fn expect_word(&mut self, word: &str) -> Result<(), TextError> {
        if self.accept_word(word) { Ok(()) } else { self.expected(&format!("`{word}`")) }
    }

    pub(super) fn peek(&self, symbol: &str) -> bool {
        self.rest().starts_with(symbol)
    }

    pub(super) fn accept(&mut self, symbol: &str) -> bool {
        let found = self.peek(symbol);
        if found {
            self.advance(symbol.len());
        }
        found
    }

    pub(super) fn expect(&mut self, symbol: &str) -> Result<(), TextError> {
        if self.accept(symbol) { Ok(()) } else { self.expected(&format!("`{symbol}`")) }
    }

    /// An id such as `v3`.
    pub(super) fn id<T: EntityRef>(&mut self, prefix: &str) -> Result<T, TextError> {
        let n = self.word_len();
        let number = self.rest()[..n]
            .strip_prefix(prefix)
            .filter(|d| !d.is_empty() && (d.len() == 1 || !d.starts_with('0')))
            .and_then(|d| d.parse::<u32>().ok())
            // Tables are dense, and every id below this one takes text to define.
            .filter(|&i| (i as usize) < self.text.len());
        let Some(i) = number else { return self.expected(&format!("an id `{prefix}…`")) };
        self.advance(n);
        Ok(T::new(i as usize))
    }

    pub(super) fn peek_id(&self, prefix: &str) -> bool {
        let word = &self.rest()[..self.word_len()];
        word.strip_prefix(prefix)
            .is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
    }

    pub(super) fn number<T: std::str::FromStr>(&mut self) -> Result<T, TextError> {
        let n = self.word_len();
        match self.rest()[..n].parse() {
            Ok(x) => {
                self.advance(n);
                Ok(x)
            }
            Err(_) => self.expected("a number"),
        }
    }

    /// A run of characters up to a comma, bracket or blank: one element of a constant.
    pub(super) fn element(&mut self) -> Result<&'a str, TextError> {
        let rest = self.rest();
        let n =
            rest.find(|c: char| c.is_whitespace() || matches!(c, ',' | ']')).unwrap_or(rest.len());
        if n == 0 {
            return self.expected("an element");
        }
        self.advance(n);
        Ok(&rest[..n])
    }

    /// A JSON value.
    pub(super) fn json(&mut self) -> Result<serde_json::Value, TextError> {
        let mut stream = serde_json::Deserializer::from_str(self.rest()).into_iter();
        match stream.next() {
            Some(Ok(value)) => {
                let n = stream.byte_offset();
                self.advance(n);
                Ok(value)
            }
            Some(Err(e)) => Err(self.error(format!("not JSON: {e}"))),
            None => self.expected("JSON"),
        }
    }

    /// A quoted name; empty where none stands.
    pub(super) fn optional_name(&mut self) -> Result<String, TextError> {
        if !self.peek("\"") {
            return Ok(String::new());
        }
        self.name()
    }

    /// A quoted name.
    pub(super) fn name(&mut self) -> Result<String, TextError> {
        match self.json()? {
            serde_json::Value::String(s) => Ok(s),
            _ => self.expected("a name in quotes"),
        }
    }

    /// A type such as `f32[4,3]`.
    pub(super) fn tensor_type(&mut self) -> Result<TensorType, TextError> {
        let Some(dtype) = DType::from_name(&self.rest()[..self.word_len()]) else {
            return self.expected("an element type");
        };
        self.word()?;
        self.expect("[")?;
        let mut shape = Vec::new();
        while !self.accept("]") {
            if !shape.is_empty() {
                self.expect(",")?;
            }
            shape.push(self.number()?);
        }
        let ty = TensorType::new(dtype, shape);
        match ty.checked_bytes() {
            Some(_) => Ok(ty),
            None => Err(self.error(format!("type {ty} is too large"))),
        }
    }

    /// `(a, b, …)` with items that `item` reads.
    pub(super) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, TextError>,
    ) -> Result<Vec<T>, TextError> {
        self.expect("(")?;
        let mut items = Vec::new();
        while !self.accept(")") {
            if !items.is_empty() {
                self.expect(",")?;
            }
            items.push(item(self)?);
        }
        Ok(items)
    }
}
