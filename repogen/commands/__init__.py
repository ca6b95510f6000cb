"""One module a verb, each with one public function of that name."""
