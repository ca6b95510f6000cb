from repogen.cli import main

main()
