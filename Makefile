# Short names for what is typed most. `./millrace --help` has every command.
.DEFAULT_GOAL := help
.PHONY: help up down test fast

help: ## Print these targets.
	@sed -n 's/^\([a-z]*\): ## /\1	/p' $(firstword $(MAKEFILE_LIST))

up: ## Start the embedded stack and run the example.
	./millrace up

down: ## Stop everything; data stays.
	./millrace down

test: ## Run what every change has to pass.
	./millrace test

fast: ## Run linter, type checker and unit tests; start no server.
	./millrace test --fast
